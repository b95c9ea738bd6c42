"""How far the simulator is off: a scenario in both worlds, figure by figure.

Both worlds have the same inputs: what the real one recorded (the sizes that lie in the store and the attention blocks
that the model runs, the KV blocks that every step selected) is what the simulator replays. What is compared is what
happens then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from kvferry.analysis.fidelity_quality import quality_beside, quality_of
from kvferry.analysis.figure_beside import figure_beside
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.occupancy import union
from kvferry.backends.world import OpenWorld, Say
from kvferry.machine.span import Span
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import BACKENDS, run_scenario
from kvferry.specs.errors import KvferryError
from kvferry.specs.live import DecodeLive
from kvferry.specs.scenario import Scenario

# Compared end to end, of the metrics of a run; the ones that neither world has are left out.
COMPARED = (
    *("ttft_s", "load_s", "tpot_s", "link_bytes", "streamed_share", "link_utilisation", "compute_utilisation"),
    *("throughput_tokens_per_s", "reuse_rate", "read_bytes", "storage_utilisation", "io_to_compute"),
)


@dataclass(frozen=True, kw_only=True)
class TwoWorlds:
    """A scenario simulated and carried out, once each."""

    scenario: Scenario
    simulated: Run
    measured: Run


def in_both_worlds(
    scenario: Scenario,
    *,
    say: Say = lambda what: None,
    live: OpenWorld | None = None,
    priced: Callable[[], Scenario] | None = None,
) -> TwoWorlds:
    """Carry a scenario out (in the torch backend's world, or the one that `live` opens), and simulate it, or what
    `priced` makes of it once the real run is over.

    Raises InputError as ``run_scenario`` does, KvferryError when a run does not finish, or finishes only by
    computing what the link should have brought, KeyboardInterrupt where Ctrl-C ends one of the two.
    """
    measured = run_scenario(scenario, say=say, open_world=live or BACKENDS["torch"])
    if measured.interrupted:
        raise KeyboardInterrupt
    if measured.outcome != "done":
        raise KvferryError(f"{scenario.name}: it ended {measured.outcome.replace('_', ' ')}: {measured.why}")
    if measured.faults:
        raise KvferryError(f"{scenario.name}: a run that measures nothing: {'; '.join(measured.faults)}")
    simulated = run_scenario(
        scenario if priced is None else priced(), open_world=BACKENDS["sim"], inputs=measured.inputs
    )
    if simulated.interrupted:
        raise KeyboardInterrupt
    if simulated.outcome != "done":
        raise KvferryError(f"{scenario.name}: simulated, it ends {simulated.outcome}: {simulated.why}")
    return TwoWorlds(scenario=scenario, simulated=simulated, measured=measured)


def figures_of(scenario: Scenario, run: Run) -> dict[str, Any]:
    """What is kept of a run: ``metrics``, those of COMPARED that it has and ``overlap`` (share of the load time when
    link and processor both work), and ``ops``, [resource, label, how many spans, their mean seconds]. Of conversations
    also ``turns``: seconds to the first token of each, from its question. Of decoding whose quality is asked for
    (``live.quality``) also ``quality``, what the run knows of it."""
    metrics = metrics_for(scenario, run)
    if run.tally.bytes_of("link"):
        metrics["overlap"] = _overlap(run, scenario.device.main)
    compared = {key: metrics[key] for key in (*COMPARED, "overlap") if key in metrics}
    turns = {} if run.sessions is None else {"turns": [one.first_token_s - one.arrival_s for one in run.sessions.turns]}
    asked = isinstance(scenario.live, DecodeLive) and scenario.live.quality
    quality = {"quality": quality_of(metrics)} if asked else {}
    return {"metrics": compared, "ops": _ops(run.spans), **turns, **quality}


def beside(
    simulated: Mapping[str, Any], measured: Sequence[Mapping[str, Any]], headline: str = "ttft_s"
) -> dict[str, Any]:
    """A simulated run's figures beside those of measured ones.

    ``metrics``: per figure the simulated one, the median of the measured ones, ``error`` = simulated / measured - 1,
    and ``spread``, the standard deviation of the measured ones over their median (None for a single run). ``ops``:
    per resource and label, how many spans, their mean duration and its error. ``runs``: every measured `headline`, the
    metric that the workload is about. ``turns``, of conversations: each turn's TTFT like a metric, and
    ``turn_error_median``, the median of their absolute errors. ``quality``, where it was measured: ``quality_beside``.
    """
    runs = [figures["metrics"] for figures in measured]
    metrics = {
        key: figure_beside(value, [figures[key] for figures in runs])
        for key, value in simulated["metrics"].items()
        if all(key in figures for figures in runs)
    }
    ops = _ops_beside(simulated["ops"], [figures["ops"] for figures in measured])
    found = {"metrics": metrics, "ops": ops, "headline": headline, "runs": [figures.get(headline) for figures in runs]}
    quality = quality_beside(simulated.get("quality", {}), [figures.get("quality", {}) for figures in measured])
    found |= {"quality": quality} if quality else {}
    return found | _turns_beside(simulated.get("turns", ()), [figures.get("turns", ()) for figures in measured])


def beside_pairs(pairs: Sequence[Mapping[str, Any]], headline: str = "ttft_s") -> dict[str, Any]:
    """The same of `pairs`, each a ``simulated`` run and the ``measured`` one that it was calibrated for: the error of a
    metric, and of a turn, is the median of theirs."""
    simulated, measured = ([pair[world] for pair in pairs] for world in ("simulated", "measured"))
    found = beside(simulated[-1], measured, headline)
    for key, metric in found["metrics"].items():
        _in_pairs(
            metric,
            [(ours["metrics"][key], theirs["metrics"][key]) for ours, theirs in zip(simulated, measured, strict=True)],
        )
    for n, turn in enumerate(found.get("turns", ())):
        _in_pairs(
            turn, [(ours["turns"][n], theirs["turns"][n]) for ours, theirs in zip(simulated, measured, strict=True)]
        )
    return found | _median_of(found.get("turns", ()))


def _in_pairs(metric: dict[str, Any], pairs: Sequence[tuple[float, float]]) -> None:
    metric["simulated"] = median(ours for ours, _ in pairs)
    errors = [ours / theirs - 1 for ours, theirs in pairs if theirs]
    metric["error"] = median(errors) if errors else metric["error"]


def summary_of(rows: Sequence[dict[str, Any]], allowed: float = 0.15) -> dict[str, Any]:
    """Over scenarios: the absolute error of their headline metrics, and which lie beyond what is allowed.

    That is `allowed`, or twice the hardware's own spread where that is larger.
    """
    found = [row["metrics"][row["headline"]] for row in rows if row.get("headline") in row["metrics"]]
    if not found:
        return {"scenarios": len(rows)}
    errors = np.abs([one["error"] for one in found])
    spreads = [one["spread"] for one in found if one["spread"] is not None]
    limits = np.maximum(allowed, [2 * (one["spread"] or 0.0) for one in found])
    return {
        "scenarios": len(rows),
        "headline": " and ".join(dict.fromkeys(row["headline"] for row in rows)),
        "error_median": float(np.median(errors)),
        "error_p90": float(np.percentile(errors, 90)),
        "error_largest": float(errors.max()),
        "spread_median": float(np.median(spreads)) if spreads else None,
        "beyond": int((errors > limits).sum()),
    }


def _overlap(run: Run, processor: str) -> float:
    """Share of the loads' time in which bytes arrive while the processor works."""
    link, compute = (
        [span for span in run.spans if span.resource == resource and _of_a_load(span, run)]
        for resource in ("link", processor)
    )
    loads_s = sum(record.loaded_s - record.arrival_s for record in run.requests if record.loaded_s is not None)
    both_s = _length(union(link)) + _length(union(compute)) - _length(union([*link, *compute]))
    return both_s / loads_s if loads_s else 0.0


def _of_a_load(span: Span, run: Run) -> bool:
    return any(
        record.loaded_s is not None and span.end_s <= record.loaded_s + 1e-9
        for record in run.requests
        if record.request == span.request
    )


def _length(intervals: tuple[np.ndarray, np.ndarray]) -> float:
    starts, ends = intervals
    return float((ends - starts).sum())


def _turns_beside(simulated: Sequence[float], measured: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Turn by turn, in the order of their numbers; empty where there are none."""
    if not simulated:
        return {}
    turns = [figure_beside(one, each) for one, each in zip(simulated, zip(*measured, strict=True), strict=True)]
    return {"turns": turns} | _median_of(turns)


def _median_of(turns: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    errors = [abs(turn["error"]) for turn in turns if turn["error"] is not None]
    return {"turn_error_median": median(errors)} if turns else {}


def _ops(spans: Sequence[Span]) -> list[list[Any]]:
    found: dict[tuple[str, str], list[float]] = {}
    for span in spans:
        if span.end_s > span.start_s:
            found.setdefault((span.resource, span.label), []).append(span.end_s - span.start_s)
    return [[*key, len(seconds), float(np.mean(seconds))] for key, seconds in sorted(found.items())]


def _ops_beside(
    simulated: Sequence[Sequence[Any]], measured: Sequence[Sequence[Sequence[Any]]]
) -> list[dict[str, Any]]:
    """A row per resource and label, simulated beside measured. Transfers share their link, so that their durations are
    its rate's rather than their own."""
    ours, *theirs = ({(op[0], op[1]): (op[2], op[3]) for op in ops} for ops in (simulated, *measured))
    rows = []
    for key in sorted({key for found in (ours, *theirs) for key in found}):
        count, mean_s = ours.get(key, (0, None))
        means = [found[key][1] for found in theirs if key in found]
        theirs_s = median(means) if means else None
        rows.append(
            {
                "resource": key[0],
                "op": key[1],
                "simulated": count,
                "measured": median(found.get(key, (0, None))[0] for found in theirs),
                "simulated_mean_s": mean_s,
                "measured_mean_s": theirs_s,
                "error": mean_s / theirs_s - 1 if mean_s and theirs_s else None,
            }
        )
    return rows
