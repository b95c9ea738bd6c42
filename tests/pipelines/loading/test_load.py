"""How often a load asks its loader; how it puts units into transfers, and how many of these it keeps under way."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kvferry.pipelines.loading import stage
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.run import run_scenario
from kvferry.policies.loading.loader import Compute, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.single_path import StreamOnly
from kvferry.scenarios.loader import load_scenario

SMALL = {
    "name": "small",
    "system": "stream-only",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "1 kbit/s"},
    "workload": {"kind": "context-reuse", "context": "2Ki"},
}


class Counting(StreamOnly):
    """Notes when it is asked what to compute."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        self.asked_s.append(facts.now_s)
        return None


@pytest.mark.parametrize(
    "link", ["{rate: 900 bit/s}", "{rate: 1 Gbit/s, outages: [{start: 0 s, duration: 1000000 s}]}"]
)
def test_where_nothing_moves_for_long_the_loader_is_seldom_asked(link: str) -> None:
    loader = Counting()
    system = replace(SYSTEMS["stream-only"], loader=lambda: loader)
    run = run_scenario(load_scenario(SMALL, [f"link={link}"]), system=system)
    (record,) = run.requests
    assert record.loaded_s is not None
    assert record.loaded_s > 1500  # polled every tenth of a second: 15,000 questions
    assert len(loader.asked_s) < 1500
    # Yet it is asked in time again once something has come.
    came_s = sorted(span.end_s for span in run.spans if span.resource == "link" and span.end_s < record.loaded_s - 1)
    for at_s in came_s:
        assert any(at_s + 0.05 < asked_s < at_s + 0.25 for asked_s in loader.asked_s), at_s


def test_for_five_seconds_a_loader_is_asked_every_window() -> None:
    loader = Counting()
    system = replace(SYSTEMS["stream-only"], loader=lambda: loader)
    run_scenario(load_scenario(SMALL), system=system)
    gaps_s = [b - a for a, b in zip(loader.asked_s, loader.asked_s[1:], strict=False) if b < 5 and b > a]
    assert len(gaps_s) > 40
    assert max(gaps_s) < 0.11


@pytest.mark.parametrize("system", ["ferry", "sparkv"])
def test_small_units_go_several_to_a_transfer_and_arrive_as_soon(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("quickstart", ["coupling=per_head", "workload.context=6Ki", f"system={system}"])
    together = run_scenario(scenario)
    monkeypatch.setattr(stage, "Pace", partial(Pace, transfer_units=1))
    one_by_one = run_scenario(scenario)
    transfers = [sum(span.resource == "link" for span in run.spans) for run in (one_by_one, together)]
    assert transfers[1] < 0.5 * transfers[0]
    for apart, joined in zip(one_by_one.requests, together.requests, strict=True):
        assert joined.loaded_s == pytest.approx(apart.loaded_s, rel=2e-3)


@pytest.mark.parametrize("rtt", ["4 ms", "50 ms"])
def test_a_link_whose_rate_jumps_does_not_run_dry(tmp_path: Path, rtt: str) -> None:
    # 0.3 s at 2 MB/s, 0.3 s at 160 MB/s: what suits the slow link is nothing to the fast one.
    rates = "".join(f"{0.6 * k:.1f},2e6\n{0.6 * k + 0.3:.1f},160e6\n" for k in range(3))
    header = "# kvferry-trace 1\n# kind: bandwidth\n# on_end: loop\n# source: made up\nstart_s,bytes_per_s\n"
    (tmp_path / "jumps.csv").write_text(f"{header}{rates}1.8,end\n")
    link = f"link={{trace: {tmp_path / 'jumps.csv'}, rtt: {rtt}}}"
    scenario = load_scenario("quickstart", [link, "coupling=per_head", "workload.context=6Ki", "system=ferry"])
    (record,) = run_scenario(scenario).requests
    assert record.loaded_s is not None
    assert record.bound_s is not None
    assert record.loaded_s / record.bound_s - 1 < 0.02


class TwoLevels(StreamOnly):
    """Fetches small units one by one, each at another level than the last."""

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._streams = (Stream((unit,), unit % 2) for unit in range(problem.units))

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        return next(self._streams, None)


def test_a_transfer_has_one_level() -> None:
    system = replace(SYSTEMS["cachegen"], loader=TwoLevels, settings={})
    scenario = load_scenario(SMALL, ["link={rate: 50 Mbit/s, rtt: 4 ms}", "coupling=per_head"])
    run = run_scenario(scenario, system=system)
    (record,) = run.requests
    units = record.units_streamed
    assert sum(span.resource == "link" for span in run.spans) == units
    assert record.wasted_bytes == 0


def test_no_decoder_idles_while_the_link_could_bring_more() -> None:
    # 8 decoders of 32,000 values/s are slower together than the link: 8,192 tokens x 256 values take 8.2 s.
    slow = "device.decompressor={values_per_s: 32 kvalue/s, workers: 8}"
    scenario = load_scenario(SMALL, ["link={rate: 10 Mbit/s, rtt: 4 ms}", slow, "workload.context=8Ki"])
    (record,) = run_scenario(scenario).requests
    assert record.loaded_s == pytest.approx(8192 * 256 / (8 * 32_000), rel=0.15)
