"""How often a load asks its loader: in time where things move, seldom where nothing does."""

from dataclasses import replace

import pytest

from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.run import run_scenario
from kvferry.policies.loading.loader import Compute, LoadFacts
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
