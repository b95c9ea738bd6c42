"""How every picture looks, and how it becomes bytes: one set of rc values, no global figure, no dates inside.

Colours are Okabe and Ito's, which colour-blind readers tell apart (https://jfly.uni-koeln.de/color/); each kind
of work also has its own hatch and its own lightness, so that a black-and-white print still reads.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvferry.analysis.paper_size import fit
from kvferry.machine.ops import OPS
from kvferry.machine.span import Span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK)
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, DARK, GREY, FAINT = "#222222", "#4A4A4A", "#767676", "#D9D9D9"

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "hatch.linewidth": 0.7,
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "figure.facecolor": "white",
    # Ids in the SVG come from this text and not from chance.
    "svg.hashsalt": "kvferry",
    "svg.fonttype": "path",
    # Letters that journals take and programs can search.
    "pdf.fonttype": 42,
}
# By name, with what a file is not to say of when and by what it was made.
FORMATS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Kind:
    """What a piece of work is for, and how it is drawn."""

    label: str
    colour: str
    hatch: str | None


KINDS: dict[str, Kind] = {
    "streamed": Kind("streamed from the cloud", BLUE, "////"),
    "computed": Kind("computed here", ORANGE, None),
    "prefill": Kind("prompt prefill", GREEN, "xxxx"),
    "decode": Kind("tokens", PURPLE, "||||"),
    "storage": Kind("storage", SKY, "...."),
    "copied": Kind("copied between memories", DARK, "----"),
    "other": Kind("other", "#999999", "\\\\\\\\"),
}

_KIND_OF_RESOURCE = {"link": "streamed", "decompress": "streamed", "copy": "copied", "storage": "storage"}
# What ops are for; others that belong to a decode step are tokens.
_KIND_OF_PURPOSE = {"computed": "computed", "prefill": "prefill", "updating clusters": "prefill", "tokens": "decode"}
# By the words that begin the labels of what is no op.
_KIND_OF_WORD = {
    "compute": "computed",
    "computed": "computed",
    "prefill": "prefill",
    "prompt": "prefill",
    "first": "decode",
    "decode": "decode",
}


def kind_of(span: Span) -> str:
    """The kind of a span, by its resource, its op, or the first word of its label."""
    if span.resource in _KIND_OF_RESOURCE:
        return _KIND_OF_RESOURCE[span.resource]
    word = re.match(r"[A-Za-z]*", span.label)
    name = word[0] if word else ""
    op = OPS.get(name)
    if op is not None:
        return "decode" if op.of_block else _KIND_OF_PURPOSE.get(op.purpose or "", "other")
    return _KIND_OF_WORD.get(name.lower(), "other")


def new_figure(width_in: float, height_in: float) -> Figure:
    """A figure of its own: no pyplot, so that drawing leaves nothing behind and works without a display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def _take_texts_literally(figure: Figure) -> None:
    """No name is a formula, whatever dollar signs it has. Numbers along a logarithmic axis are: powers of ten."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    numbers: set[Text] = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        for ticks, formatter in (
            (axis.get_major_ticks(), axis.get_major_formatter()),
            (axis.get_minor_ticks(), axis.get_minor_formatter()),
        ):
            if isinstance(formatter, LogFormatter):
                numbers.update(label for tick in ticks for label in (tick.label1, tick.label2))
    for text in figure.findobj(Text):
        if text not in numbers:
            text.set_parse_math(False)


@dataclass(frozen=True)
class Print:
    """In which formats pictures are written, of ``FORMATS``, and how wide: None: as they are drawn, with titles."""

    formats: tuple[str, ...] = ("png", "svg")
    width_in: float | None = None


AS_DRAWN = Print()


def render(draw: Callable[[], Figure], how: Print = AS_DRAWN) -> dict[str, bytes]:
    """The drawn figure as {"png": bytes, "svg": bytes}: equal drawings give equal bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever a user's matplotlibrc says
        mpl.rcParams.update(RC)
        figure = draw()
        _take_texts_literally(figure)
        FigureCanvasAgg(figure)
        if how.width_in is not None:
            fit(figure, how.width_in)
        pictures = {}
        for format in how.formats:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=format, metadata=FORMATS[format])
            figure.set_layout_engine(None)  # found once: it takes as long as the drawing
            pictures[format] = buffer.getvalue()
    return pictures
