"""Decompression: workers with a rate, in the order of hand-over."""

import pytest
import simpy
from pydantic import ValidationError

from kvferry.machine.span import Span
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_device, load_scenario
from kvferry.sim.link import Link
from kvferry.sim.slowed_queue import Decompressor
from kvferry.specs.device import DecodingSpec, DecompressorSpec
from kvferry.traces.rate import RateTrace


def world(workers: int) -> tuple[simpy.Environment, Decompressor, list[Span]]:
    env, spans = simpy.Environment(), list[Span]()
    return env, Decompressor(env, DecompressorSpec(values_per_s=100, workers=workers), spans.append), spans


def ends(*tickets: Ticket) -> list[float | None]:
    return [ticket.end_s for ticket in tickets]


def test_one_worker_decodes_one_piece_after_the_other() -> None:
    env, decompressor, spans = world(1)
    tickets = [decompressor.decompress(values, label=str(values), request=1) for values in (100, 50)]
    env.run()
    assert ends(*tickets) == [1.0, 1.5]
    assert spans == [Span("decompress", "100", 0.0, 1.0, 0.0, 1), Span("decompress", "50", 1.0, 1.5, 0.0, 1)]


def test_a_piece_has_a_fixed_time_besides() -> None:
    # 0.25 + 1, then 0.25 + 0.5
    env = simpy.Environment()
    decompressor = Decompressor(env, DecompressorSpec(values_per_s=100, piece_s=0.25), lambda _: None)
    tickets = [decompressor.decompress(values) for values in (100, 50)]
    env.run()
    assert ends(*tickets) == [1.25, 2.0]


def test_a_codec_may_have_a_rate_of_its_own() -> None:
    spec = DecompressorSpec(
        values_per_s=100, workers=3, codecs={"cachegen": DecodingSpec(values_per_s=40, piece_s=0.5)}
    )
    assert (spec.of("huffman").values_per_s, spec.of("huffman").piece_s) == (100, 0.0)
    assert (spec.of("cachegen").values_per_s, spec.of("cachegen").piece_s, spec.of("cachegen").workers) == (40, 0.5, 3)


def test_a_world_decodes_as_its_codec_does() -> None:
    # 10,000 tokens of 4 layers and 2 heads of 2 x 16 numbers, all streamed: 2.56 M values on two workers
    tiny = load_device("tiny").model_dump(mode="json")
    tiny["decompressor"]["codecs"] = {"cachegen": {"values_per_s": "1 Mvalue/s"}}
    whole = {
        "name": "decode",
        "system": "stream-only",
        "device": tiny,
        "model": "tiny",
        "link": {"rate": "1 GB/s"},
        "workload": {"kind": "context-reuse", "context": 10_000},
    }
    slow = run_scenario(load_scenario({**whole, "policies": {"codec": "cachegen"}})).requests[0].loaded_s or 0.0
    quick = run_scenario(load_scenario({**whole, "policies": {"codec": "huffman"}})).requests[0].loaded_s or 0.0
    assert slow > 2.56 / 2 > 10 * quick


def test_two_workers_take_pieces_in_order() -> None:
    # 300 and 100 begin at 0; 100 more at 1, on the worker that is free; 100 more at 2
    env, decompressor, _ = world(2)
    tickets = [decompressor.decompress(values) for values in (300, 100, 100, 100)]
    assert decompressor.queued == 2
    env.run()
    assert ends(*tickets) == [3.0, 1.0, 2.0, 3.0]
    # busy while either works: 3 s in all
    assert decompressor.busy.busy_s(0, 10) == 3.0


def test_decoding_follows_delivery_and_falls_behind_a_fast_link() -> None:
    # 100 bytes/s hold 4 values a byte: 25 bytes are there every 0.25 s, and need a second each
    env, decompressor, _ = world(1)
    link = Link(env, RateTrace.constant(100), 0.0, lambda _: None)
    fetched = [link.transfer("a", 25) for _ in range(3)]
    decoded = [decompressor.decompress(100, after=[ticket]) for ticket in fetched]
    env.run()
    assert ends(*fetched) == [0.25, 0.5, 0.75]
    assert ends(*decoded) == [1.25, 2.25, 3.25]


def test_what_never_came_is_not_decoded() -> None:
    env, decompressor, spans = world(1)
    link = Link(env, RateTrace.constant(100), 0.0, lambda _: None)
    fetched = link.transfer("a", 100)
    decoded, other = decompressor.decompress(100, after=[fetched]), decompressor.decompress(100)
    env.timeout(0.5).callbacks.append(lambda _: fetched.cancel())
    env.run()
    assert decoded.cancelled
    # held up behind it until 0.5 s
    assert (other.end_s, len(spans)) == (1.5, 1)


def test_measured_pieces_are_interpolated() -> None:
    pieces = [{"values": 10.0, "seconds": 1.0}, {"values": 30.0, "seconds": 2.0}]
    spec = DecompressorSpec.model_validate(
        {"values_per_s": 5.0, "piece_s": 9.0, "pieces": pieces, "codecs": {"plain": {"values_per_s": 4.0}}}
    )
    # flat below, half way between, and 10 more at 5 a second beyond
    assert [spec.seconds(values) for values in (5, 10, 20, 30, 40)] == [1.0, 1.0, 1.5, 2.0, 4.0]
    assert spec.of("plain").seconds(8) == 2.0
    with pytest.raises(ValidationError, match="must ascend"):
        DecompressorSpec.model_validate({"values_per_s": 5.0, "pieces": pieces[::-1]})
