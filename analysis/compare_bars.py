"""Several systems side by side: their first token or rate, their gaps and their energy as bars."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.figures import FIGURES
from kvferry.analysis.quality import MARK, lower_quality
from kvferry.analysis.style import DARK, GREY, INK, ORANGE, SERIES, VERMILION
from kvferry.analysis.tables import full_rate, is_energy_part
from kvferry.specs import human

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HATCHES = (None, "////", "xxxx", "....", "\\\\\\\\", "||||", "----")


def compare_bars(
    metrics: Mapping[str, Mapping[str, float]],
    *,
    title: str = "",
    ranked_by: str = "ttft_s",
    ranges: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    line: str = "range",
    outcomes: Mapping[str, str] | None = None,
    unclear: Collection[str] = (),
) -> Figure:
    """The metric that the workload is about and energy per request by component, a bar per system, the best on top:
    TTFT (mean, and a tick at the 95th percentile of several requests), or tokens per second. Of devices with a cloud
    also the largest gap between two tokens, and the energy of both above that of the devices. A missing figure has no
    bar, but the system's outcome where that is not "done". `ranges`: by system and metric the least and the most, which
    a line with two ends shows; `line` names it. `unclear`: systems that cannot be told from one above, marked as in the
    table."""
    order = _best_first(metrics, ranked_by)
    ranked_by = full_rate(metrics, ranked_by)
    gaps, both = ([name for name in order if key in metrics[name]] for key in ("largest_gap_s", "total_energy_j"))
    of_devices = any(metrics[name].keys() & {"total_energy_j", "assisted_share"} for name in order)
    rows = 2 if of_devices and (gaps or both) else 1
    figure = style.new_figure(10, 0.6 + rows * (0.7 + 0.34 * len(order)))
    if title:
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    grid = figure.subplots(rows, 2, sharey=True, squeeze=False)
    left, right = grid[0, 0], grid[-1, 1]
    ends = {name: (low, high) for name in order for low, high in [_ends(ranges, name, ranked_by)] if low < high}
    best = next((metrics[name][ranked_by] for name in order if metrics[name].get(ranked_by)), None)
    for row, name in enumerate(order):
        tilde = "~ " * (name in unclear)
        if ranked_by == "ttft_s":
            _draw_ttft(left, row, metrics[name], best, ends.get(name), tilde)
        else:
            _draw_rate(left, row, metrics[name].get(ranked_by), best, ends.get(name), tilde)
        outcome = (outcomes or {}).get(name, "done")
        if outcome != "done" and ranked_by not in metrics[name]:
            left.texts[-1].set(text=outcome.replace("_", " "), color=VERMILION)
    _draw_energy(right, order, metrics, outcomes or {})
    lesser = lower_quality(metrics)
    names = [f"{name} {MARK} ({lesser[name]})" if name in lesser else name for name in order]
    left.set_yticks(range(len(order)), names)
    left.invert_yaxis()
    _head(left, "Time to first token" if ranked_by == "ttft_s" else "Throughput of the batch")
    said = [f"line: {line}"] * bool(ends) + ["~: unsure"] * bool({*order} & {*unclear})
    if said:
        # Below, where no title is: beside it, what the line is may take more than half of the width.
        figure.text(0.01, 0.01, "; ".join(said), size=8, color=GREY)
    left.set_xlabel("s" if ranked_by == "ttft_s" else FIGURES[ranked_by].label)
    _head(right, "Energy per request, of devices alone" if of_devices else "Energy per request", "J")
    if rows > 1:
        _draw_gaps(grid[1, 0], order, metrics) if gaps else grid[1, 0].set_axis_off()
        _draw_both(grid[0, 1], order, metrics) if both else grid[0, 1].set_axis_off()
    for axis in grid.flat:
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
        axis.locator_params(axis="x", nbins=5)
        # Room for the figures written behind the bars.
        reach = [bar.get_x() + bar.get_width() for bar in axis.patches]
        reach += [float(max(line.get_xdata())) for line in axis.lines]
        axis.set_xlim(0, (1.6 if axis.lines else 1.3) * max(reach, default=1.0))
    return figure


def _best_first(metrics: Mapping[str, Mapping[str, float]], ranked_by: str) -> list[str]:
    if ranked_by == "ttft_s":
        return sorted(metrics, key=lambda name: (ranked_by not in metrics[name], metrics[name].get(ranked_by, 0.0)))
    return sorted(metrics, key=lambda name: -metrics[name].get(ranked_by, 0.0))


def _head(axis: Any, title: str, unit: str = "") -> None:
    axis.set_title(title)
    if unit:
        axis.set_xlabel(unit)


def _draw_gaps(axis: Any, order: Sequence[str], metrics: Mapping[str, Mapping[str, float]]) -> None:
    """The longest wait between two tokens of one request."""
    _head(axis, "Largest gap between tokens", "s")
    for row, name in enumerate(order):
        gap_s = metrics[name].get("largest_gap_s")
        axis.barh(row, gap_s or 0.0, height=0.62, color=DARK, linewidth=0)
        _write(axis, row, gap_s or 0.0, "none" if gap_s is None else human.seconds(gap_s), known=gap_s is not None)


def _draw_both(axis: Any, order: Sequence[str], metrics: Mapping[str, Mapping[str, float]]) -> None:
    """What devices and their cloud take together."""
    _head(axis, "Energy per request, of devices and cloud", "J")
    known = [name for name in order if "total_energy_j" in metrics[name]]
    whole = np.array([metrics[name]["total_energy_j"] for name in known])
    cloud = np.array([metrics[name].get("cloud_energy_j", 0.0) for name in known])
    rows = [order.index(name) for name in known]
    for n, (label, left, width) in enumerate((("devices", 0.0, whole - cloud), ("cloud", whole - cloud, cloud))):
        axis.barh(
            rows, width, left=left, height=0.62, color=SERIES[n], hatch=_HATCHES[n], edgecolor="white", linewidth=0,
            label=label,
        )  # fmt: skip
    for row, name in enumerate(order):
        total_j = metrics[name].get("total_energy_j", 0.0)
        _write(axis, row, total_j, human.energy(total_j) if name in known else "not counted", known=name in known)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _write(axis: Any, row: int, end: float, text: str, *, known: bool = True) -> None:
    """A figure behind its bar, grey where nothing is known."""
    axis.annotate(
        text, (end, row), xytext=(4, 0), textcoords="offset points", va="center", size=8.5,
        color=INK if known else GREY,
    )  # fmt: skip


def _ends(ranges: Mapping[str, Mapping[str, Sequence[float]]] | None, name: str, metric: str) -> tuple[float, float]:
    low, high = (ranges or {}).get(name, {}).get(metric, (0.0, 0.0))
    return low, high


def _draw_range(axis: Any, row: int, ends: tuple[float, float] | None) -> None:
    """A line between the least and the most, light where it lies on the bar."""
    if ends is not None:
        axis.plot(ends, [row, row], color=ORANGE, linewidth=1.6, marker="|", markersize=8, zorder=4)


def _draw_ttft(
    axis: Any,
    row: int,
    metrics: Mapping[str, float],
    best_s: float | None,
    ends: tuple[float, float] | None,
    tilde: str,
) -> None:
    ttft_s = metrics.get("ttft_s")
    if ttft_s is None:
        axis.annotate("none", (0, row), xytext=(4, 0), textcoords="offset points", va="center", color=GREY)
        return
    axis.barh(row, ttft_s, height=0.62, color=DARK, linewidth=0)
    end_s = ttft_s
    if metrics.get("requests", 1) > 1 and "ttft_p95_s" in metrics:
        end_s = max(ttft_s, metrics["ttft_p95_s"])
        axis.plot([ttft_s, metrics["ttft_p95_s"]], [row, row], color=INK, linewidth=1)
        axis.plot([metrics["ttft_p95_s"]], [row], marker="|", color=INK, markersize=8)
    _draw_range(axis, row, ends)
    end_s = max(end_s, ends[1]) if ends else end_s
    slower = f"  ({tilde}{human.ratio(ttft_s / best_s)})" if best_s and ttft_s > best_s else ""
    axis.annotate(
        human.seconds(ttft_s) + slower, (end_s, row), xytext=(4, 0), textcoords="offset points", va="center", size=8.5
    )


def _draw_rate(
    axis: Any, row: int, rate: float | None, best: float | None, ends: tuple[float, float] | None, tilde: str
) -> None:
    if rate is None:
        axis.annotate("none", (0, row), xytext=(4, 0), textcoords="offset points", va="center", color=GREY)
        return
    axis.barh(row, rate, height=0.62, color=DARK, linewidth=0)
    _draw_range(axis, row, ends)
    slower = f"  ({tilde}{human.ratio(best / rate)} slower)" if best and 0 < rate < best else ""
    axis.annotate(
        f"{human.of_unit('_per_s')(rate)}{slower}",
        (max(rate, ends[1]) if ends else rate, row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        size=8.5,
    )


def _draw_energy(
    axis: Any, order: list[str], metrics: Mapping[str, Mapping[str, float]], outcomes: Mapping[str, str]
) -> None:
    # Where a part is not known, the others would look like a low sum.
    metrics = {name: metrics[name] if "energy_j" in metrics[name] else {} for name in order}
    parts = sorted({key for name in order for key in metrics[name] if is_energy_part(key) and metrics[name][key]})
    left = np.zeros(len(order))
    for n, part in enumerate(parts):
        width = np.array([metrics[name].get(part, 0.0) for name in order])
        axis.barh(
            range(len(order)), width, left=left, height=0.62, color=SERIES[n % len(SERIES)],
            hatch=_HATCHES[n % len(_HATCHES)], edgecolor="white", linewidth=0,
            label=part.removeprefix("energy_").removesuffix("_j"),
        )  # fmt: skip
        left += width
    for row, name in enumerate(order):
        total_j = metrics[name].get("energy_j")
        # Where nothing ran, nothing took energy.
        lacking = "not counted" if outcomes.get(name, "done") == "done" else ""
        axis.annotate(
            lacking if total_j is None else human.energy(total_j), (total_j or 0.0, row), xytext=(4, 0),
            textcoords="offset points", va="center", size=8.5, color=GREY if total_j is None else INK,
        )  # fmt: skip
    if parts:
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
