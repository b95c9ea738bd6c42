"""Finds the least count, of machines say, with which enough requests keep their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis.assisted import machines_of
from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.record import Run
from kvferry.specs import human
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import SloSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

# Figures of a trial that are medians over its seeds.
_FIGURES = ("slo_attainment", "ttft_p95_s", "tpot_p95_s", "throughput_tokens_per_s", "goodput_requests_per_s")
# The cloud's prefill of a request, without the wait for it.
_PROMPT = "cloud_prefill_s"


@dataclass(frozen=True)
class Trial:
    """Holds what came of a count, medians over the seeds.

    ``attainment``: the share of requests within the SLO; 0 where a run did not end well, and then `why` says so.
    ``machines``: how many stand in the cloud, by kind, and ``busy``: which share of the time their busiest processor
    worked. ``machine_s``: the cloud's machine-seconds of a request. ``prompt_p95_s``: the 95th percentile of the
    cloud's prefill alone, waits within an instance included.
    """

    count: int
    attainment: float
    figures: Mapping[str, float]
    machines: Mapping[str, int] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)
    machine_s: float | None = None
    prompt_p95_s: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Capacity:
    """``least``: the smallest count that was tried with at least the `wanted` attainment, and none just below it has
    it; None where no count has, and `why` says what stands in the way. ``trials`` by count."""

    setting: str
    wanted: float
    least: int | None
    trials: Sequence[Trial]
    why: str = ""

    @property
    def best(self) -> Trial:
        """Returns the trial of the least count, else the one with the highest attainment."""
        if self.least is not None:
            return next(one for one in self.trials if one.count == self.least)
        return max(self.trials, key=lambda one: one.attainment)

    def to_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "slo_attainment": self.wanted,
            "least": self.least,
            "why": self.why,
            "trials": [
                {
                    "count": one.count,
                    **one.figures,
                    "machines": dict(one.machines),
                    "busy": dict(one.busy),
                    "machine_s_per_request": one.machine_s,
                    "cloud_prefill_p95_s": one.prompt_p95_s,
                    **({"why": one.why} if one.why else {}),
                }
                for one in self.trials
            ],
        }


def least_count(
    setting: str, wanted: float, most: int, trial_of: Callable[[int], Trial], slo: SloSpec | None = None
) -> Capacity:
    """Tries 1, 2, 4, ... up to `most` until enough requests keep their limits, then halves the gap to the count before.

    More is taken to be never worse: of counts that were not tried nothing is known. Doubling ends where it changes
    nothing any more.
    """
    trials: dict[int, Trial] = {}

    def tried(count: int) -> Trial:
        if count not in trials:
            trials[count] = trial_of(count)
        return trials[count]

    below, count = 0, 1
    while tried(count).attainment < wanted:
        idle = below and tried(count).figures == tried(below).figures
        if count == most or idle:
            found = [trials[n] for n in sorted(trials)]
            return Capacity(setting, wanted, None, found, _why_none(setting, wanted, tried(count), bool(idle), slo))
        below, count = count, min(2 * count, most)
    while count - below > 1:
        middle = (below + count) // 2
        below, count = (below, middle) if tried(middle).attainment >= wanted else (middle, count)
    return Capacity(setting, wanted, count, [trials[n] for n in sorted(trials)])


def _why_none(setting: str, wanted: float, last: Trial, idle: bool, slo: SloSpec | None) -> str:
    if last.why:
        return f"with {setting} at {last.count:,}: {last.why}"
    reached = f"{last.attainment:.1%} of the requests keep the SLO"
    start = f"from {last.count // 2:,} on more of them change nothing" if idle else f"{last.count:,} is the most tried"
    limits = []
    for name, limit_s in () if slo is None else (("ttft", slo.ttft_s), ("tpot", slo.tpot_s)):
        reached_s = last.figures.get(f"{name}_p95_s")
        if limit_s is not None and reached_s is not None:
            limits.append(f"{name.upper()} p95 {human.seconds(reached_s)}, limit {human.seconds(limit_s)}")
    prompt = ""
    if slo is not None and slo.ttft_s is not None and (last.prompt_p95_s or 0.0) > slo.ttft_s:
        prompt = f"; the cloud's prefill alone takes {human.seconds(last.prompt_p95_s or 0.0)} at the 95th percentile"
    return f"no {setting} reaches {wanted:.1%}: {start}, and {reached} ({'; '.join(limits)}){prompt}"


def trial(count: int, scenarios: Sequence[Scenario], run: Callable[[Scenario], Run]) -> Trial:
    """Carries the scenarios out, which have this count and a seed each."""
    runs = [(scenario, run(scenario)) for scenario in scenarios]
    for _, one in runs:
        if one.outcome != "done":
            return Trial(count, 0.0, {}, why=f"{one.outcome.replace('_', ' ')}: {one.why}")
    found = [metrics_for(scenario, one) for scenario, one in runs]
    figures = {
        key: float(median(values))
        for key in _FIGURES
        if len(values := [m[key] for m in found if key in m]) == len(found)
    }
    kinds = [machines_of(one) for _, one in runs]
    prompts = [value for _, one in runs if (value := _prompt_p95_s(one)) is not None]
    requests = [metrics.get("requests", 0.0) for metrics in found]
    used = [
        len(one.machines) * one.duration_s / n for (_, one), n in zip(runs, requests, strict=True) if n and one.machines
    ]
    return Trial(
        count,
        figures.get("slo_attainment", 0.0),
        figures,
        machines={kind: n for kind, (n, _) in kinds[0].items()},
        busy={kind: float(median(one[kind][1] for one in kinds)) for kind in kinds[0]},
        machine_s=float(median(used)) if used else None,
        prompt_p95_s=float(median(prompts)) if prompts else None,
    )


def _prompt_p95_s(run: Run) -> float | None:
    if run.assisted is None or _PROMPT not in run.assisted.columns:
        return None
    known = run.assisted.columns[_PROMPT]
    known = known[np.isfinite(known)]
    return float(np.percentile(known, 95)) if len(known) else None
