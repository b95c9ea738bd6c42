"""What loads can count on, by hand: their share of both paths, the device's decoders, background load, their turn."""

import numpy as np
import pytest

from kvferry.machine.machine import Facts
from kvferry.pipelines.loading.outlook import Outlook, intake_values_per_s, placing_s
from kvferry.pipelines.loading.workload import load_bound_s, remembered_labels
from kvferry.pipelines.run import run_scenario
from kvferry.policies.loading.bound import column_labels
from kvferry.policies.loading.hybrid import Hybrid
from kvferry.policies.loading.problem import LoadProblem
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.device import DecompressorSpec, MemorySpec, PieceSpec
from kvferry.traces.rate import RateTrace

UNIFIED = MemorySpec(unified=True, capacity_bytes=1e9, bytes_per_s=1e9)
SEEN = Facts(
    now_s=1.0,
    window_s=0.1,
    goodput_bytes_per_s=80.0,
    link_utilisation=1.0,
    compute_utilisation=1.0,
    compute_speed=0.8,
    compute_queue=0,
    link_queue=0,
    free_bytes=0.0,
)


def test_a_load_counts_on_its_share() -> None:
    start = Outlook(bytes_per_s=80.0, rtt_s=0.1).at_start(0.0, loads=4)
    assert (start.planned_bytes_per_s, start.planned_speed) == (20.0, 0.25)
    # Both paths are shared alike: what a unit is worth is the same.
    assert start.planned_exchange == 80.0
    later = Outlook(bytes_per_s=80.0, rtt_s=0.1).later(start, SEEN, loads=2)
    assert (later.goodput_bytes_per_s, later.compute_speed, later.now_s) == (40.0, 0.4, 1.0)
    nothing_seen = SEEN._replace(goodput_bytes_per_s=None, compute_speed=None)
    unseen = Outlook(bytes_per_s=80.0, rtt_s=0.1).later(start, nothing_seen, loads=2)
    assert (unseen.seen_bytes_per_s, unseen.seen_speed) == (20.0, 0.25)


def test_bytes_arrive_no_faster_than_they_are_decoded() -> None:
    outlook = Outlook(bytes_per_s=80.0, rtt_s=0.1, intake_bytes_per_s=30.0)
    assert outlook.at_start(0.0, loads=1).planned_bytes_per_s == 30.0
    assert outlook.later(outlook.at_start(0.0, 1), SEEN, loads=1).goodput_bytes_per_s == 30.0


def test_plans_know_the_background_load_at_their_start() -> None:
    outlook = Outlook(bytes_per_s=80.0, rtt_s=0.1, available=lambda now_s: 0.25 if now_s > 5 else 1.0)
    assert outlook.at_start(0.0, loads=1).planned_speed == 1.0
    facts = outlook.at_start(6.0, loads=1)
    assert facts.planned_speed == 0.25
    # 8 chunks of 3 s and 80 bytes: two computed, both paths end at 6 s; at a quarter of the speed one would take 12 s.
    problem = LoadProblem(compute_s=np.full((8, 1, 1), 3.0), stream_bytes=np.full((8, 1, 1), 80.0), coupling="per_head")
    splits = []
    for start in (outlook.at_start(0.0, loads=1), facts):
        hybrid = Hybrid("true-costs")
        hybrid.start(problem, start)
        splits.append(hybrid.split)
    assert splits == [2, 0]


def test_how_fast_a_device_takes_values_in() -> None:
    decoders = DecompressorSpec(values_per_s=100.0, workers=4)
    assert intake_values_per_s(decoders, UNIFIED, 2.0) == 400.0
    # A copy of 500 bytes/s is 250 values of 2 bytes.
    discrete = MemorySpec(
        unified=False, capacity_bytes=1e9, bytes_per_s=1e9, host_capacity_bytes=1e9, copy_bytes_per_s=500.0
    )
    assert intake_values_per_s(decoders, discrete, 2.0) == 250.0
    assert intake_values_per_s(None, discrete, 2.0) == 250.0
    assert intake_values_per_s(None, UNIFIED, 2.0) == float("inf")
    # Measured pieces: none is decoded faster than the fastest of them.
    measured = DecompressorSpec(values_per_s=100.0, workers=1, pieces=(PieceSpec(values=10.0, seconds=0.05),))
    assert intake_values_per_s(measured, UNIFIED, 2.0) == 200.0


def test_the_bound_counts_decoding() -> None:
    # Four units that take 1 s on the link, 2 s of the decoders, 100 s of the processor.
    problem = LoadProblem(compute_s=np.full((4, 1, 1), 100.0), stream_bytes=np.ones((4, 1, 1)), coupling="per_head")
    link, processor = RateTrace.constant(1.0), RateTrace.constant(1.0)
    slow, fast = (np.full((4, 1, 1), seconds) for seconds in (2.0, 0.1))
    # All streamed but what the processor does of a unit meanwhile: t = (4 - t / 100) 2.
    assert load_bound_s(problem, slow, link, 0.0, processor, 0.0) == pytest.approx(8 / 1.02, rel=1e-6)
    assert load_bound_s(problem, fast, link, 0.0, processor, 0.0) == pytest.approx(4 / 1.01, rel=1e-6)


def test_what_the_last_transfer_takes_behind_the_link() -> None:
    # 50 values: half a second of one of four workers; 100 bytes, of 500 a second behind a tenth of latency.
    decoders = DecompressorSpec(values_per_s=100.0, workers=4)
    discrete = MemorySpec(
        unified=False,
        capacity_bytes=1e9,
        bytes_per_s=1e9,
        host_capacity_bytes=1e9,
        copy_bytes_per_s=500.0,
        copy_latency_s=0.1,
    )
    assert placing_s(decoders, discrete, 2.0, 50.0) == pytest.approx(0.8)
    assert placing_s(decoders, UNIFIED, 2.0, 50.0) == 0.5
    assert placing_s(None, UNIFIED, 2.0, 50.0) == 0.0
    # Where a larger piece was measured to be quicker, it may be the last.
    pieces = (PieceSpec(values=10.0, seconds=0.05), PieceSpec(values=50.0, seconds=0.04))
    assert placing_s(DecompressorSpec(values_per_s=100.0, pieces=pieces), UNIFIED, 2.0, 10.0) == 0.04


def test_the_bound_counts_what_the_last_transfer_takes_behind_the_link() -> None:
    # Four units that take 1 s on the link, 100 s of the processor; half a second passes behind the last byte.
    link, processor = RateTrace.constant(1.0), RateTrace.constant(1.0)
    ones, no_intake = np.ones((4, 1, 1)), np.zeros((4, 1, 1))
    problem = LoadProblem(compute_s=100 * ones, stream_bytes=ones, coupling="per_head")
    found = load_bound_s(problem, no_intake, link, 0.0, processor, 0.0, placing_s=0.5)
    # t - 0.5 = 4 - t / 100
    assert found == pytest.approx(4.5 / 1.01, rel=1e-6)
    # A load that is computed meanwhile does not wait for it.
    quick = LoadProblem(compute_s=0.1 * ones, stream_bytes=ones, coupling="per_head")
    assert load_bound_s(quick, no_intake, link, 0.0, processor, 0.0, placing_s=10.0) == pytest.approx(0.4, rel=1e-6)


def test_a_processors_start_is_planned_with_until_it_is_over() -> None:
    outlook = Outlook(bytes_per_s=80.0, rtt_s=0.1, processor_from_s=3.0, available=lambda now_s: 0.5)
    start = outlook.at_start(1.0, loads=1)
    problem = LoadProblem(compute_s=np.ones((1, 1, 1)), stream_bytes=np.ones((1, 1, 1)), coupling="per_head")
    # Of 2 s, in which half a processor would have done 1 s of work.
    assert (start.starting_s, start.planned(problem).start_s) == (2.0, 1.0)
    assert outlook.later(start, SEEN._replace(now_s=2.5), loads=1).starting_s == 0.5
    assert outlook.at_start(4.0, loads=1).planned(problem) is problem


def test_the_bound_knows_when_the_processor_has_started() -> None:
    # 4 units of 1 s on either path, no round trip. Started 3 s late, the processor helps with the last: 3 + 1 / 2.
    problem = LoadProblem(compute_s=np.ones((4, 1, 1)), stream_bytes=np.ones((4, 1, 1)), coupling="per_head")
    link = processor = RateTrace.constant(1.0)
    no_intake = np.zeros((4, 1, 1))
    for from_s, least_s in ((0.0, 2.0), (10.0, 2.0), (13.0, 3.5), (14.0, 4.0), (99.0, 4.0)):
        found = load_bound_s(problem, no_intake, link, 0.0, processor, 10.0, from_s)
        assert found == pytest.approx(least_s, rel=1e-6)


def test_a_bound_years_behind_the_clocks_start_is_the_round_trip() -> None:
    """Where less than the clock's last digit, 60 ns, lies between a request's way and its bytes' way back."""
    problem = LoadProblem(compute_s=np.full((1, 1, 1), 9.0), stream_bytes=np.ones((1, 1, 1)), coupling="per_head")
    link, processor = RateTrace.constant(1e15), RateTrace.constant(1.0)
    for rtt_s in np.linspace(0.001, 0.2, 60):
        found = load_bound_s(problem, np.zeros((1, 1, 1)), link, rtt_s, processor, 390193133.66)
        assert found == pytest.approx(rtt_s, abs=1e-6)


PHONE = ("device=oneplus-12", "model=llama-3.2-3b", "workload.context=2000", "link={rate: 850 Mbit/s, rtt: 4 ms}")


@pytest.mark.parametrize("system", ["ferry", "sparkv", "strong-hybrid", "stream-only"])
def test_a_phone_whose_npu_starts_streams_meanwhile(system: str) -> None:
    scenario = load_scenario("quickstart", [*PHONE, f"system={system}", "workload.requests=2"])
    start_s = scenario.device.processors["npu"].load_s
    first, second = run_scenario(scenario).requests
    # The NPU starts when the first request comes, whether anything is computed or not.
    assert first.loaded_s < start_s < first.first_token_s < start_s + 0.5
    assert second.first_token_s - second.arrival_s < start_s
    assert 0 <= first.loaded_s / first.bound_s - 1 < 0.1


def regret(*overrides: str) -> float:
    scenario = load_scenario("quickstart", ["workload.context=6Ki", "coupling=per_head", *overrides])
    (record,) = run_scenario(scenario).requests
    assert record.loaded_s is not None
    assert record.bound_s is not None
    return record.loaded_s / record.bound_s - 1


@pytest.mark.parametrize("system", ["sparkv", "ferry"])
def test_loads_whose_decoders_are_slower_than_the_link_are_planned_so(system: str) -> None:
    slow = "device.decompressor={values_per_s: 80 Mvalue/s, workers: 1}"
    assert 0 <= regret(f"system={system}", slow) < 0.04


def test_plans_that_nothing_adapts_are_made_for_the_load_at_their_start() -> None:
    assert 0 <= regret("system=sparkv", "load={share: 0.55}", "policies.adapt=false") < 0.4


def test_one_at_a_time_the_first_load_ends_as_if_it_were_alone() -> None:
    def ends_s(requests: int, serving: str) -> list[float]:
        asked = (f"workload.requests={requests}", "workload.arrivals={every: 1 ms}", f"policies.serving={serving}")
        scenario = load_scenario("quickstart", ["workload.context=4Ki", "system=stream-only", *asked])
        return [record.loaded_s or 0.0 for record in run_scenario(scenario).requests]

    (alone,) = ends_s(1, "fair")
    turns, shared = ends_s(3, "one-at-a-time"), ends_s(3, "fair")
    assert turns[0] == pytest.approx(alone)
    assert turns == sorted(turns)
    # Both serve three loads' bytes: the last ends when it does, the first two sooner.
    assert max(turns) == pytest.approx(max(shared), rel=0.05)
    assert turns[0] < 0.5 * shared[0]
    assert turns[1] < 0.8 * shared[1]


def test_a_bound_depends_on_its_own_problem_whatever_was_asked_for_before() -> None:
    def problem(**changed: float) -> LoadProblem:
        costs = {"compute_s": 2.0, "stream_bytes": 3.0} | changed
        return LoadProblem(
            **{name: np.array([[[one], [1.0]]]) for name, one in costs.items()},  # type: ignore[arg-type]
            coupling="per_head",
        )

    problems = [problem(), problem(compute_s=5.0), problem(), problem(stream_bytes=7.0), problem()]
    for one in problems:
        assert (remembered_labels(one) == column_labels(one)).all()
    assert remembered_labels(problems[0]) is remembered_labels(problems[-1])
    assert remembered_labels(problems[0]) is not remembered_labels(problems[1])
