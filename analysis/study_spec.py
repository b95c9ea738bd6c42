"""The keys of a study's file; its values are checked by the scenario that they go into."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kvferry.scenarios.number_range import MOST_POINTS
from kvferry.specs.base import BadKey, Spec

# Which keys a kind of plot needs, and which it may have besides where, log, title and name.
_KEYS = {
    "line": (("x", "y"), ("by", "band", "pool")),
    "cdf": (("x",), ("by",)),
    "heat_map": (("x", "y", "value"), ("pool",)),
    "bar": (("x", "y"), ("by", "band", "pool")),
    "stack": (("x", "parts"), ("pool",)),
    "pareto": (("x", "y"), ("by",)),
}


# Of these keys those that name one setting or metric.
PLOTTED = ("x", "y", "value", "by")


class PlotSpec(Spec):
    """A picture: a line or bars with their spread (y over x), the distribution of x, a heat map (value over x and y),
    parts of a whole on top of each other at each x, or every point by two metrics with the ones that no other one
    beats.

    x, y, value, by and parts name a setting, as in link.rate, or a metric, as in ttft_s.
    """

    kind: Literal["line", "cdf", "heat_map", "bar", "stack", "pareto"]
    x: str
    y: str | None = None
    value: str | None = None
    # Figures of one unit.
    parts: tuple[str, ...] | None = Field(default=None, min_length=2, max_length=7)
    # A line per value of it; seeds make the spread.
    by: str | None = None
    # Conditions (analysis.condition) on settings and metrics: rows are shown for which all hold.
    where: tuple[str, ...] = ()
    # Axes over which a mark is the median. Others that the plot does not name have a panel per value.
    pool: tuple[str, ...] = ()
    band: Literal["p5-p95", "min-max"] = "p5-p95"
    log: tuple[Literal["x", "y", "value"], ...] = ()
    title: str = Field(default="", max_length=200)
    # The picture's file name; None: made from the keys.
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> "PlotSpec":
        needed, possible = _KEYS[self.kind]
        for key in needed:
            if getattr(self, key) is None:
                raise BadKey(key, f"is missing; a {self.kind} needs {' and '.join(needed)}")
        for key in sorted(self.model_fields_set & {"y", "value", "by", "band", "pool", "parts"} - {*needed, *possible}):
            raise BadKey(key, f"is of no use to a {self.kind}, which takes {', '.join((*needed, *possible))}")
        if self.kind in ("bar", "stack") and "y" in self.log:
            instead = "; a line takes log: [y]" if self.kind == "bar" else ""
            raise BadKey("log", f"y: lengths of bars begin at zero, which a logarithmic axis does not have{instead}")
        return self

    @property
    def columns(self) -> dict[str, str]:
        """The keys that name a setting or metric, with what they name."""
        found = {key: getattr(self, key) for key in PLOTTED}
        parts = {f"parts.{n}": part for n, part in enumerate(self.parts or ())}
        return {key: column for key, column in found.items() if column is not None} | parts

    @property
    def values(self) -> tuple[str, ...]:
        """Of these keys those whose figures a mark shows; the others say where it stands."""
        shown = {"cdf": ("x",), "heat_map": ("value",), "pareto": ("x", "y")}.get(self.kind, ("y",))
        return tuple(key for key in self.columns if key in shown or key.startswith("parts."))


def _base(value: Any) -> Any:
    if isinstance(value, str | dict):
        return value
    raise ValueError(f"{value!r:.60} is not a scenario: its name, its path, or a mapping (key: value)")


def _seeds(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_POINTS:
        return list(range(value))
    if isinstance(value, list):
        return value
    raise ValueError(f"{value!r:.60} is neither a list of seeds nor how many, from 1 to {MOST_POINTS:,}")


def _axis(value: Any) -> Any:
    if isinstance(value, dict) or (isinstance(value, list) and value):
        return value
    if isinstance(value, list):
        raise ValueError("a list: entries needed: at least 1")
    raise ValueError(f"{value!r:.60} is neither a list nor a range (from, to, and points or step)")


RANGE = {
    "type": "object",
    "properties": {key: {} for key in ("from", "to", "step")}
    | {"points": {"type": "integer"}, "log": {"type": "boolean"}},
    "required": ["from", "to"],
    "additionalProperties": False,
}
_VALUES = {"anyOf": [{"type": "array", "minItems": 1}, RANGE]}
_SEEDS = {"anyOf": [{"type": "array", "minItems": 1}, {"type": "integer", "minimum": 1, "maximum": MOST_POINTS}]}

Base = Annotated[Any, BeforeValidator(_base)]
# A list, or 5 for 0, 1, 2, 3, 4.
Seeds = Annotated[tuple[Any, ...], BeforeValidator(_seeds), Field(min_length=1), WithJsonSchema(_SEEDS)]
# By key a list of values, or a range as analysis.number_range reads it.
Axes = dict[str, Annotated[Any, BeforeValidator(_axis), WithJsonSchema(_VALUES)]]


class SampleSpec(Spec):
    """Points drawn at random: in each, every key has one of its values, or one within its range."""

    points: int = Field(ge=1, le=MOST_POINTS)
    # Latin-hypercube: each key's range is cut into as many equal parts as there are points, and each part has one.
    method: Literal["latin-hypercube", "random"] = "latin-hypercube"
    seed: int = Field(default=0, ge=0, lt=2**32)
    keys: Annotated[Axes, Field(min_length=1)]


class StudySpec(Spec):
    """The shape of a study."""

    # None: the file's.
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+ -]{0,99}$")
    base: Base
    axes: Axes = Field(default_factory=dict)
    # By label what it sets, key by key; analysis.variants reads them.
    variants: dict[str, dict[str, Any] | None] | None = None
    # Axes that vary together, value by value.
    zip: tuple[Axes, ...] = ()
    samples: tuple[SampleSpec, ...] = ()
    # None: the base's own.
    seeds: Seeds | None = None
    # Conditions (analysis.condition): a point stays where all hold.
    where: tuple[str, ...] = ()
    plots: tuple[PlotSpec, ...] = ()
    # A folder below the current one; None: runs/NAME.
    output: str | None = Field(default=None, min_length=1)
