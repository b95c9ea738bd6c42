"""Devices that decode without a break: the rate over time as people measured it, beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.style import BLUE, GREY, INK, VERMILION
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_whole
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario
from kvferry.traces.sustained import THROTTLED_SHARE, Rates, SeriesSpec, load_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parents[1] / "papers" / "devices"
# What a series is judged by, and how it is called.
SUSTAINED = {
    "cold_tokens_per_s": "cold tokens/s",
    "throttled_tokens_per_s": "throttled tokens/s",
    "throttled_after_s": "throttles after, s",
    "joules_per_token": "J/token",
}
# Of each, in the order of a cell.
_SIDES = ("paper", "ours", "error")


def scenario_of(spec: SeriesSpec, tokens: int) -> Scenario:
    """Chats one after the other that come to so many tokens."""
    settings = {
        "device": spec.device,
        "engine": spec.engine,
        "model": spec.model,
        "precision.weights": spec.weights,
        "workload.context": spec.context,
        "workload.output": spec.output,
        "workload.requests": math.ceil(tokens / spec.output),
    }
    return load_scenario("sustained", [f"{key}={value}" for key, value in settings.items()])


def rates_of(run: Run, piece_s: float, pieces: int) -> Rates:
    """Tokens of all requests over time."""
    times_s = np.concatenate([request.token_times_s for request in run.requests])
    counts, _ = np.histogram(times_s, bins=piece_s * np.arange(pieces + 1))
    return Rates(piece_s, counts / piece_s)


def compared() -> list[dict[str, Any]]:
    """Every series beside ours, each run now."""
    return [beside_ours(name, *series) for name, series in load_series(FOLDER).items()]


def beside_ours(name: str, spec: SeriesSpec, measured: Rates) -> dict[str, Any]:
    """A series, which is run now for as long as it was measured at least: its rates, cold and throttled, when it
    throttles and its joules per token, measured and ours, and both courses as lists."""
    lasting_s = measured.piece_s * len(measured.per_s)
    # At the measured rate, and a quarter more, as ours may be faster.
    run = run_whole(scenario_of(spec, math.ceil(1.25 * measured.per_s.mean() * lasting_s)))
    assert run.duration_s >= lasting_s, f"{name}: {run.duration_s:.0f} s are run"
    ours = rates_of(run, measured.piece_s, len(measured.per_s))
    tokens = sum(len(request.token_times_s) for request in run.requests)
    return {
        "series": name,
        "device": spec.device,
        "engine": spec.engine,
        "measured_on": spec.measured or spec.engine,
        "fitted": bool(spec.fitted),
        **_beside("cold_tokens_per_s", measured.cold_per_s, ours.cold_per_s),
        **_beside("throttled_tokens_per_s", measured.throttled_per_s, ours.throttled_per_s),
        **_beside("throttled_after_s", measured.throttled_after_s, ours.throttled_after_s),
        **_beside("joules_per_token", spec.joules_per_token, sum(run.energy_j.values()) / tokens),
        "piece_s": measured.piece_s,
        "measured_per_s": measured.per_s.tolist(),
        "ours_per_s": ours.per_s.tolist(),
    }


def sustained_rows(report: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The rows of a report's series, each figure as "measured, ours (error)"."""
    for row in report.get("sustained", ()):
        keys = {"series": row["series"], "device": row["device"], "measured on": row["measured_on"]}
        figures = {name: _told(*(row[f"{key}_{one}"] for one in _SIDES)) for key, name in SUSTAINED.items()}
        yield {**keys, "fitted": "fitted" if row["fitted"] else "", **figures}


def _beside(name: str, measured: float | None, ours: float | None) -> dict[str, float | None]:
    error = None if measured is None or ours is None else ours / measured - 1
    return {f"{name}_{side}": value for side, value in zip(_SIDES, (measured, ours, error), strict=True)}


def _told(measured: float | None, ours: float | None, error: float | None) -> str:
    both = ", ".join("never" if value is None else f"{value:.3g}" for value in (measured, ours))
    return both if error is None else f"{both} ({error:+.1%})"


def sustained_picture(rows: Sequence[dict[str, Any]]) -> Figure:
    """Rates over time as shares of the first one, measured and ours, a panel per series."""
    figure = style.new_figure(10, 3.4)
    panels = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for axis, row in zip(panels, rows, strict=True):
        for whose, name, look in (
            ("measured", f"measured ({row['measured_on']})", {"color": INK, "linewidth": 1.2}),
            ("ours", "ours", {"color": BLUE if row["fitted"] else VERMILION}),
        ):
            rates = Rates(row["piece_s"], np.array(row[f"{whose}_per_s"]))
            axis.plot(rates.middles_s, 100 * rates.per_s / rates.cold_per_s, label=name, **look)
            if rates.throttled_after_s is not None:
                axis.axvline(rates.throttled_after_s, color=look["color"], linewidth=0.8, linestyle=":")
        axis.axhline(100 * THROTTLED_SHARE, color=GREY, linewidth=0.7, linestyle=":")
        axis.set_title(f"{row['series']} on {row['device']}{', fitted on' if row['fitted'] else ', left out'}")
        axis.set_xlabel("time (s)")
        axis.set_xlim(left=0)
        axis.grid()
        axis.legend(loc="upper right")
    panels[0].set_ylim(0, 105)
    panels[0].set_ylabel("tokens/s, % of the first 5 s")
    return figure
