"""Measured rates beside ours: errors by device and engine, and all in one picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.reproduction.measured_rates import measured_rates, named_by_case
from kvferry.analysis.reproduction.paper import PrintedCell, load_paper
from kvferry.analysis.style import MARKERS, SERIES
from kvferry.pipelines.run import run_whole
from kvferry.scenarios.loader import load_scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = dict[str, Any]


def errors_by_device(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """For each device, engine and experiment: rows, of these fitted, the smallest and largest model, and the errors."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        if cell["paper"] is not None and cell["relative_error"] is not None:
            groups.setdefault((cell["device"], cell["engine"], cell["experiment"]), []).append(cell)
    return [
        {
            "device": device,
            "engine": engine,
            "experiment": experiment,
            "rows": len(group),
            "fitted": sum(bool(cell.get("fitted")) for cell in group),
            "median_error": float(np.median([abs(cell["relative_error"]) for cell in group])),
            "least": min(cell["relative_error"] for cell in group),
            "most": max(cell["relative_error"] for cell in group),
        }
        for (device, engine, experiment), group in sorted(groups.items())
    ]


def rates_of(device: str) -> Iterator[Cell]:
    """The cells of one device, each run now."""
    for name, experiment in load_paper("devices").experiments.items():
        rates = (rate for rate in measured_rates() if rate.metric == experiment.rates and rate.device == device)
        for case, rate in named_by_case(rates).items():
            cell = PrintedCell.model_validate(rate.cell(name, case, experiment.systems[0]))
            scenario = load_scenario("decode", rate.overrides())
            ours = metrics_for(scenario, run_whole(scenario))[cell.metric]
            key = {"device": device, "engine": rate.engine, "experiment": name, "fitted": bool(rate.fitted)}
            yield {**key, "paper": cell.value, "ours": ours, "relative_error": cell.error(ours)}


def rates_picture(cells: Iterable[Cell]) -> Figure:
    """Ours over measured, a panel for rates and one for first tokens, by device; hollow where something was fitted."""
    shown = [cell for cell in cells if cell["paper"] is not None and cell["ours"] is not None]
    devices = sorted({cell["device"] for cell in shown})
    figure = style.new_figure(10, 5.4)
    panels = figure.subplots(1, 2)
    for axis, metric, what in zip(
        panels, ("throughput_tokens_per_s", "ttft_s"), ("decoding, tokens/s", "first token, s"), strict=True
    ):
        of_metric = [cell for cell in shown if cell["metric"] == metric]
        for n, device in enumerate(devices):
            # Colour and shape together differ for every device.
            marker, colour = MARKERS[n % len(MARKERS)], SERIES[(n + n // len(MARKERS)) % len(SERIES)]
            for fitted in (False, True):
                points = [c for c in of_metric if c["device"] == device and bool(c.get("fitted")) is fitted]
                face: dict[str, Any] = {"markerfacecolor": "none"} if fitted else {}
                axis.plot(
                    [c["paper"] for c in points],
                    [c["ours"] for c in points],
                    linestyle="none",
                    marker=marker,
                    color=colour,
                    markersize=6,
                    **face,
                )
            axis.plot([], [], linestyle="none", marker=marker, color=colour, label=device)
        ends = [figure for cell in of_metric for figure in (cell["paper"], cell["ours"])]
        if ends:
            line = np.array([min(ends) / 1.3, max(ends) * 1.3])
            axis.plot(line, line, color=style.GREY, linewidth=0.8)
            axis.fill_between(line, line / 1.15, line * 1.15, color=style.FAINT, zorder=0)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_title(what)
        axis.set_xlabel("measured")
        axis.set_ylabel("predicted")
        axis.grid()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, title="hollow: fitted on; grey: within 15 %")
    return figure
