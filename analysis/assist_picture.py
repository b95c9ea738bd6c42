"""A request that a cloud helps with: what either side does when, and which tokens the user sees when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.analysis import style
from kvferry.analysis.style import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILION
from kvferry.pipelines.record import Assisted, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fewer requests have no distribution worth drawing.
_LEAST_FOR_A_DISTRIBUTION = 20
_LANE = 0.62
# Parts of a request on the cloud and on the device, in their order: column, label, colour, hatch.
_CLOUD = (
    ("waited_s", "waits for a slot", FAINT, None),
    ("cloud_prefill_s", "cloud prefills", ORANGE, None),
    ("refined_s", "cloud refines the prompt", PURPLE, "xxxx"),
)
_DEVICE = (
    ("prepared_s", "device prepares", SKY, "...."),
    ("answered_s", "waits for the cloud", FAINT, None),
    ("unpacked_s", "waits for the mask, unpacks it", VERMILION, "xxxx"),
    ("own_prefill_s", "device prefills", BLUE, "////"),
)


def assist_picture(run: Run, *, title: str = "") -> Figure:
    """Above: the parts of a request on cloud and device, means over the run's. Below: the tokens of its first request
    as they are shown; where it has many, also how the times to their first tokens are distributed.

    Raises ValueError for a run without a request that has ended.
    """
    assisted = run.assisted
    if assisted is None or not len(assisted.columns["arrival_s"]):
        raise ValueError("nothing to draw: no request has ended")
    many = len(assisted.columns["arrival_s"]) >= _LEAST_FOR_A_DISTRIBUTION
    figure = style.new_figure(10, 5.0)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    grid = figure.add_gridspec(2, 2 if many else 1, height_ratios=[1.0, 1.9])
    _draw_parts(figure.add_subplot(grid[0, :]), assisted)
    _draw_tokens(figure.add_subplot(grid[1, 0]), run, assisted)
    if many:
        _draw_distribution(figure.add_subplot(grid[1, 1]), assisted)
    return figure


def _mean(column: np.ndarray) -> float:
    known = column[np.isfinite(column)]
    return float(known.mean()) if len(known) else 0.0


def _draw_parts(axis: Any, assisted: Assisted) -> None:
    means = {name: _mean(column) for name, column in assisted.columns.items()}
    if not np.isfinite(assisted.columns["answered_s"]).any():
        # Nothing was asked: all of it is the device's own prefill.
        means["own_prefill_s"] = _mean(assisted.columns["own_first_s"] - assisted.columns["began_s"])
    # The way there and back takes the rest of the time from asking to the answer. Refinement is part of it where the
    # first token waits for the mask.
    way = means["answered_s"] - means["waited_s"] - means["cloud_prefill_s"]
    way = max(0.0, way - means["refined_s"] if means["refined_s"] <= way else way) / 2
    for lane, parts, start in ((1, _CLOUD, means["prepared_s"] + way), (0, _DEVICE, 0.0)):
        for name, label, colour, hatch in parts:
            axis.barh(
                lane, means[name], left=start, height=_LANE, color=colour, hatch=hatch, edgecolor="white",
                linewidth=0.4, label=label if means[name] else None,
            )  # fmt: skip
            start += means[name]
    axis.set_yticks([0, 1], ["device", "cloud"])
    axis.set_xlim(left=0)
    axis.set_xlabel("s since the request")
    axis.set_title("Until the device has a first token of its own, mean")
    axis.tick_params(axis="y", length=0)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=2.2, handleheight=1)


def _draw_tokens(axis: Any, run: Run, assisted: Assisted) -> None:
    story = run.requests[0]
    at = int(np.flatnonzero(assisted.columns["request"] == story.request)[0])
    column = {name: values[at] for name, values in assisted.columns.items()}
    times_s = np.array(story.token_times_s) - story.arrival_s
    numbers, from_cloud = np.arange(1, len(times_s) + 1), int(column["tokens"])
    axis.plot(
        times_s[:from_cloud], numbers[:from_cloud], linestyle="none", marker="o", markersize=3, color=ORANGE,
        label="from the cloud",
    )  # fmt: skip
    axis.plot(
        times_s[from_cloud:], numbers[from_cloud:], linestyle="none", marker="^", markersize=3, color=BLUE,
        label="the device's own",
    )  # fmt: skip
    own_s = column["own_first_s"] - story.arrival_s
    if np.isfinite(own_s):
        axis.axvline(own_s, color=GREY, linewidth=0.9, linestyle="--")
        axis.annotate(
            "the device's own\nfirst token", (own_s, 0.97), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", va="top", size=8, color=INK,
        )  # fmt: skip
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("s since the request")
    axis.set_ylabel("tokens shown")
    axis.set_title("What the user sees, first request")
    axis.legend(loc="lower right")


def _draw_distribution(axis: Any, assisted: Assisted) -> None:
    columns = assisted.columns
    shown = (
        ("first token, as users see it", columns["first_s"] - columns["arrival_s"], GREEN, "-"),
        ("the device's own", columns["own_first_s"] - columns["arrival_s"], BLUE, "--"),
        ("longest wait between tokens", columns["largest_gap_s"], VERMILION, ":"),
    )
    for label, values, colour, line in shown:
        known = np.sort(values[np.isfinite(values)])
        if len(known):
            axis.plot(known, np.arange(1, len(known) + 1) / len(known), color=colour, linestyle=line, label=label)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(0, 1)
    axis.set_xlabel("s")
    axis.set_ylabel("share of requests")
    axis.set_title(f"All {len(columns['arrival_s']):,} requests")
    axis.grid(axis="x")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
