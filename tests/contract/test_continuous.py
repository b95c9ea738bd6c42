"""Requests that come and go, in every world: the same flow, the same turns."""

from worlds import World

from kvferry.pipelines.decoding.continuous import ContinuousDecode
from kvferry.pipelines.decoding.passes import Passes
from kvferry.policies.decode.batcher import Batcher
from kvferry.traces.request import Request


def test_requests_come_and_go(world: World) -> None:
    # Three pages: the second request gives way to the first, and the third waits with it.
    requests = (Request(0.0, 15, 4), Request(0.0, 16, 3), Request(0.0, 4, 1))
    batcher = Batcher(3, 2)
    decode = ContinuousDecode(world.machine, Passes(world.machine, 2), requests, batcher, page_bytes=10.0)
    world.machine.env.run(until=world.machine.env.process(decode.run()))
    assert [len(times_s) for times_s in decode.token_times_s] == [4, 3, 1]
    assert [n for n, _ in decode.steps] == [2, 1, 1]
    assert batcher.preemptions == 1
    assert batcher.pages.free_pages == 3
    first, second, third = decode.token_times_s
    assert first[0] == second[0] < first[1] == second[1] < first[3] < second[2] == third[0]


def test_a_request_that_comes_later_is_waited_for(world: World) -> None:
    began_s = world.machine.env.now
    requests = (Request(0.0, 4, 2), Request(began_s + 0.3, 4, 2))
    decode = ContinuousDecode(world.machine, Passes(world.machine, 1), requests, Batcher(2, 2), page_bytes=10.0)
    world.machine.env.run(until=world.machine.env.process(decode.run()))
    assert decode.token_times_s[1][0] >= began_s + 0.3
