"""What planners price: the pipeline's own stages, timed by hand."""

from typing import Any

import pytest
from decoding import roles_of

from kvferry.pipelines.decoding.prices import Part, Parts
from kvferry.pipelines.decoding.timetable import Interval, Timetable, idle_s, timed
from kvferry.policies.decode.stages import Key, Stage, before_pass, with_write_back

SECONDS = {"select": 1, "look_up": 2, "attend": 3, "feed_forward": 4, "next_token": 5, "retrieve": 6}
READ = (Part("storage", 10),)
COPIED = (*READ, Part("copies", 4))


def parts_of(table: Timetable, moves: Parts = READ) -> list[Parts]:
    """Every move takes the same parts."""
    return [(Part("processor", SECONDS[stage.kind]),) if stage.kind in SECONDS else moves for stage in table.stages]


def ends(
    system: str, layers: int, beside: float = 1.0, moves: Parts = READ, ahead: bool = True, **before: Any
) -> dict[str, float]:
    table = Timetable(roles_of(system, **({} if ahead else {"ahead": False})).step(layers))
    times = timed(table.steps, parts_of(table, moves), {"storage": beside, "copies": beside}, **before).stages
    return {f"{stage.kind} {stage.layer}": times[n][1] for n, stage in enumerate(table.stages)}


def test_reads_ahead_by_hand() -> None:
    # Select and look up 3, read until 13; layer 1's from 13 to 16, read until 26; layer 0 computes from 16 to 23,
    # layer 1 from 26 to 33, head 38.
    found = ends("kvswap", 2)
    assert (found["bring 0"], found["bring 1"], found["feed_forward 0"]) == (13, 26, 23)
    assert found["next_token 0"] == 38


def test_reads_slow_computing_by_hand() -> None:
    # Layer 0 computes from 16 on, at half its speed while layer 1 is read: 5 of 7 s done at 26, all at 28.
    found = ends("kvswap", 2, beside=0.5)
    assert (found["attend 0"], found["feed_forward 0"], found["next_token 0"]) == (22, 28, 40)


def test_reads_and_computing_slow_each_other_by_hand() -> None:
    # Layer 0's 7 s and layer 1's read begin at 16; both are half as fast until 30, when 3 s of reading are left.
    # Layer 1 computes from 33 to 40.
    found = ends("kvswap", 2, beside=0.5, beside_processor={"storage": 0.5})
    assert (found["feed_forward 0"], found["bring 1"], found["next_token 0"]) == (30, 33, 45)


def test_queues_that_slow_nothing_are_timed_alike() -> None:
    copied = {"moves": COPIED, "arriving": {1: 40.0}, "free": {"storage": 2.0}}
    for system in ("kvswap", "flexgen", "shadowkv"):
        together = ends(system, 3, beside_processor={"storage": 1.0}, **copied)
        assert together == pytest.approx(ends(system, 3, **copied))


def test_a_joined_tensor_goes_back_before_the_next_layer_attends_by_hand() -> None:
    # Layer 0 arrives at 10 and has ended at 17; layer 1 comes until 20, and what goes back of layer 0 until 30. Only
    # then layer 1 computes, until 37, and layer 2 comes, until 40; layer 1 goes back until 50.
    found = ends("full-eager", 3, moves=(Part("copies", 10),))
    assert (found["feed_forward 0"], found["bring_all 1"], found["write_back 0"]) == (17, 20, 30)
    assert (found["feed_forward 1"], found["bring_all 2"], found["write_back 1"]) == (37, 40, 50)
    # The head does not wait for the last layer's.
    assert (found["feed_forward 2"], found["next_token 0"], found["write_back 2"]) == (57, 62, 67)


def test_fetches_that_begin_before_the_pass_wait_for_nothing_that_goes_back() -> None:
    def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
        return [Stage("bring_all", layer, after)]

    stages = with_write_back(before_pass((), fetch, "bring_all", 3))
    assert [stage.after for stage in stages[:3]] == [(), (), ()]
    assert {stage.layer: stage.after[1:] for stage in stages if stage.kind == "attend"} == {
        0: (),
        1: (("write_back", 0),),
        2: (("write_back", 1),),
    }


def test_own_queries_by_hand() -> None:
    # 3 + 10 + 7 per layer.
    assert ends("kvswap", 2, ahead=False)["next_token 0"] == 45


def test_everything_read_by_hand() -> None:
    # Reads follow each other: 10, 20, 30; the last layer computes then.
    assert ends("flexgen", 3)["next_token 0"] == 42


def test_a_copy_goes_on_where_a_read_ends_by_hand() -> None:
    # 10 and 4; the next layer is read once the copy has ended.
    found = ends("flexgen", 3, moves=COPIED)
    assert [found[f"bring_all {layer}"] for layer in range(3)] == [14, 28, 42]
    assert found["next_token 0"] == 54


def brought_together(moves: Parts, beside: float) -> list[Interval]:
    """Two layers that are brought one behind the other, and computed."""

    def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
        return [Stage("bring", layer)]

    table = Timetable(before_pass((Stage("retrieve", 0),), fetch, "bring", 2))
    return timed(table.steps, parts_of(table, moves), {"storage": beside, "copies": beside}).stages


def test_reads_and_copies_overlap_by_hand() -> None:
    # Reads end at 10 and 20, copies at 14 and 24; layer 0 computes from 14 to 21, layer 1 from 24 to 31.
    assert brought_together(COPIED, 1.0) == [(0, 6), (0, 14), (10, 24), (14, 17), (17, 21), (24, 27), (27, 31)]


def test_two_queues_slow_computing_together_by_hand() -> None:
    # Reads end at 10 and 20, copies at 20 and 30. Layer 0 computes from 20 beside the
    # second copy, 5 of 7 done at 30, until 32.
    times = brought_together((*READ, Part("copies", 10)), 0.5)
    assert (times[4], times[6]) == ((26, 32), (35, 39))


def test_what_is_there_takes_no_time_and_waits_for_no_queue() -> None:
    # No move: computing begins at once, whatever storage is busy with.
    assert ends("flexgen", 2, moves=(), free={"storage": 50})["next_token 0"] == 2 * 7 + 5


def test_moves_wait_for_what_their_queue_had_before_by_hand() -> None:
    # Writes of the step before end at 4: reads at 14 and 24.
    assert ends("flexgen", 2, free={"storage": 4})["next_token 0"] == 24 + 7 + 5


def test_a_layer_that_moves_elsewhere_is_brought_from_there_by_hand() -> None:
    # Layer 1 arrives at 15: its read ends at 25.
    assert ends("flexgen", 2, arriving={1: 15})["next_token 0"] == 25 + 7 + 5
    # In memory then, attention waits for it all the same.
    assert ends("flexgen", 2, moves=(), arriving={1: 15})["next_token 0"] == 15 + 7 + 5


def test_one_choice_before_the_pass_by_hand() -> None:
    def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
        return [Stage("look_up", layer), Stage("bring", layer, (("look_up", layer),))]

    stages = before_pass((Stage("retrieve", 0, awaited=True),), fetch, "bring", 2)
    # Retrieve 6, look up 8 and 10; read from 8 to 18 and 28; layer 0 computes from 18 to 25, layer 1 from 28 to 35.
    table = Timetable(stages)
    assert [end for _, end in timed(table.steps, parts_of(table), {}).stages] == [6, 8, 18, 10, 28, 21, 25, 31, 35]


def test_idle_time_by_hand() -> None:
    assert idle_s((2, 10), [(0, 3), (4, 5), (8, 20)]) == pytest.approx(1 + 3)
    assert idle_s((2, 10), []) == 8
    assert idle_s((2, 10), [(11, 12)]) == 8
    assert idle_s((2, 10), [(0, 6), (6, 11)]) == 0
