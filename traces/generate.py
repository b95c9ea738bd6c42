"""Random traces: bandwidth with the spread, autocorrelation and fades of a recorded link, and bursts of load.

A model is a few dozen numbers in a YAML file; the same model and seed give the same trace anywhere.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from kvferry.specs.base import Spec
from kvferry.specs.document import parse_document, read_text
from kvferry.specs.errors import UNSHOWN, InputError
from kvferry.specs.findings import rule_of
from kvferry.specs.node import Node
from kvferry.system.whole_file import write_file
from kvferry.traces.chance import named_generator
from kvferry.traces.derived import trimmed
from kvferry.traces.format import MOST
from kvferry.traces.rate import RateTrace

MAX_SAMPLES = 1_000_000
_MAX_YAML_BYTES = 100_000
# More of them would be placed for a minute.
MAX_FADES = 200_000
# Subtracted from the score of faded samples, so that they take the lowest rates of all.
_BELOW_ALL = 100.0
# Random places drawn for a fade beyond its `tries`, as some are taken already.
_PLACES = 50


# Numbers as a file writes them: no text and no truth values.
Number = Annotated[float, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]


class Memory(Spec):
    """A part of the variance, and the time after which its correlation has fallen to 1/e."""

    share: Number = Field(gt=0, le=1)
    time_s: Number = Field(gt=0, le=1e6)


class Fades(Spec):
    """Times at the lowest rates: their share of all time, and how long each lasts (mean; std over mean).

    Each fade is placed at the lowest of `tries` random places: with 1 fades come without warning, with many they
    follow a decline.
    """

    share: Number = Field(gt=0, lt=1)
    mean_s: Number = Field(gt=0, le=1e6)
    cv: Number = Field(gt=0, le=100)
    tries: Whole = Field(default=1, ge=1, le=1000)


class Model(Spec):
    """The fields that every model has."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    description: str = Field(max_length=500)
    # The recordings that its time structure and its distribution were fitted to, in words; empty: made up.
    fitted_to: str = Field(default="", max_length=500)
    seed: Whole = Field(default=1, ge=0, lt=2**63)
    duration_s: Number = Field(gt=0, le=1e6)
    # Statistic -> (what it was fitted to, what the generated trace has), in Mbit/s where it is a rate.
    figures: Mapping[str, tuple[Number | None, Number | None]] = Field(default_factory=dict, max_length=40)


class BandwidthModel(Model):
    """The distribution of rates, and how long they stay correlated.

    A Gaussian process, the sum of exponentially correlated parts and of white noise for what `memory` leaves of
    the variance, is mapped by rank onto the quantile function: every realisation has exactly this distribution, and
    chance decides the course of time alone. Fades are placed first and take the lowest ranks.
    """

    kind: Literal["bandwidth"]
    interval_s: Number = Field(gt=0, le=1e4)
    # The quantile function: `bytes_per_s[i]` is not reached for `levels[i]` of the time; straight lines between.
    levels: tuple[Number, ...] = Field(min_length=2, max_length=101)
    bytes_per_s: tuple[Annotated[Number, Field(ge=0, le=MOST["bandwidth"])], ...]
    memory: tuple[Memory, ...] = Field(max_length=8)
    fades: Fades | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "BandwidthModel":
        if len(self.levels) != len(self.bytes_per_s):
            raise ValueError(f"{len(self.levels)} levels for {len(self.bytes_per_s)} rates")
        if self.levels[0] != 0 or self.levels[-1] != 1 or not (np.diff(self.levels) > 0).all():
            raise ValueError("levels must ascend from 0 to 1")
        if not (np.diff(self.bytes_per_s) >= 0).all():
            raise ValueError("bytes_per_s must not descend")
        if sum(part.share for part in self.memory) > 1 + 1e-9:
            raise ValueError("the shares of memory are more than 1 together")
        if self.duration_s / self.interval_s > MAX_SAMPLES:
            raise ValueError(f"more than {MAX_SAMPLES} samples; a longer interval would do")
        return self


class LoadModel(Model):
    """Background work in bursts: busy for a while at some level, then idle for a while."""

    kind: Literal["load"]
    busy_mean_s: Number = Field(gt=0, le=1e6)
    idle_mean_s: Number = Field(gt=0, le=1e6)
    # Shares of the processor: uniform between the two while busy, constant while idle.
    busy_low: Number = Field(ge=0, le=1)
    busy_high: Number = Field(ge=0, le=1)
    idle: Number = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _consistent(self) -> "LoadModel":
        if self.busy_low > self.busy_high:
            raise ValueError("busy_low is above busy_high")
        if self.duration_s / (self.busy_mean_s + self.idle_mean_s) > MAX_SAMPLES:
            raise ValueError(f"more than {MAX_SAMPLES} bursts; a shorter duration would do")
        return self


_MODELS: TypeAdapter[BandwidthModel | LoadModel] = TypeAdapter(
    Annotated[BandwidthModel | LoadModel, Field(discriminator="kind")]
)


def read_model(path: Path) -> BandwidthModel | LoadModel:
    """The model in a YAML file, read as a scenario is. Raises InputError with file and line."""
    root = parse_document(read_text(path, _MAX_YAML_BYTES, "trace model"), str(path), path.parent)
    try:
        return _MODELS.validate_python(root.plain())
    except ValidationError as error:
        at: Node | None = root
        for key in error.errors(include_url=False)[0]["loc"]:
            # The kind stands in front of the keys, and names none of them.
            at = (at.child(key) or at) if at else None
        raise InputError(f"{at.place if at else path}: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """The first fault of a model in one line: the key, the rule, the value found."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"] if part not in ("bandwidth", "load")]
    return f"{'.'.join(place) or 'the model'}: {rule_of(first)}; what came is {first['input']!r:.60}"


def generate(model: BandwidthModel | LoadModel, seed: int | None = None) -> RateTrace:
    """One realisation, looping; `seed` instead of the model's own. Rates are bytes/s, or shares of a processor."""
    rng = named_generator(model.name, model.seed if seed is None else seed)
    return _load(model, rng) if isinstance(model, LoadModel) else _bandwidth(model, rng)


def _bandwidth(model: BandwidthModel, rng: np.random.Generator) -> RateTrace:
    n = max(1, round(model.duration_s / model.interval_s))
    white = max(0.0, 1 - sum(part.share for part in model.memory))
    score = math.sqrt(white) * rng.standard_normal(n)
    for part in model.memory:
        score += math.sqrt(part.share) * _remembering(n, math.exp(-model.interval_s / part.time_s), rng)
    if model.fades:
        score[_faded(score, model.interval_s, model.fades, rng)] -= _BELOW_ALL
    rank = np.empty(n)
    rank[np.argsort(score, kind="stable")] = np.arange(n)
    return RateTrace.from_samples(np.interp((rank + 0.5) / n, model.levels, model.bytes_per_s), model.interval_s)


def _remembering(n: int, keep: float, rng: np.random.Generator) -> np.ndarray:
    """A stationary first-order autoregression of variance 1."""
    steps = math.sqrt(1 - keep * keep) * rng.standard_normal(n)
    value = float(rng.standard_normal())
    course = []
    for step in steps.tolist():
        value = keep * value + step
        course.append(value)
    return np.array(course)


def _faded(score: np.ndarray, interval_s: float, fades: Fades, rng: np.random.Generator) -> np.ndarray:
    """bool[n]: samples in a fade. Fades do not touch; they make up the given share of all samples if there is room."""
    n = len(score)
    budget = round(fades.share * n)
    shape = fades.cv**-2
    lengths: list[int] = []
    left = budget
    while left:
        drawn = rng.gamma(shape, fades.mean_s / shape / interval_s)
        lengths.append(min(max(1, round(drawn)), left))
        left -= lengths[-1]
        if len(lengths) > MAX_FADES:
            raise InputError(f"fades: more than {MAX_FADES:,} of them; a smaller share or longer ones would do")
    scores = np.concatenate([[0.0], np.cumsum(score)])
    # One sample more at either end, which is never faded.
    faded = np.zeros(n + 2, dtype=bool)
    for length in sorted(lengths, reverse=True):
        starts = rng.integers(0, n - length + 1, size=_PLACES + fades.tries)
        # One sample on either side stays clear, so that two fades are not one longer one. The ones that are there are
        # as long or longer: whichever meets the place covers its first sample, or the one before or behind it.
        apart = ~(faded[starts] | faded[starts + 1] | faded[starts + length + 1])
        free = starts[apart][: fades.tries]
        if len(free):
            at = free[np.argmin(scores[free + length] - scores[free])]
            faded[at + 1 : at + 1 + length] = True
    return faded[1:-1]


def _load(model: LoadModel, rng: np.random.Generator) -> RateTrace:
    edges, shares = [0.0], []
    while edges[-1] < model.duration_s:
        edges.append(edges[-1] + max(1e-3, rng.exponential(model.idle_mean_s)))
        shares.append(model.idle)
        edges.append(edges[-1] + max(1e-3, rng.exponential(model.busy_mean_s)))
        shares.append(rng.uniform(model.busy_low, model.busy_high))
    return trimmed(RateTrace(np.array(edges), np.array(shares)), 0.0, model.duration_s)


def write_model(path: Path, model: BandwidthModel | LoadModel) -> None:
    """Write a model as YAML, whole or not at all; ``read_model`` gives it back. Raises KvferryError."""
    import yaml

    values = model.model_dump(mode="json", exclude_none=True)
    head = {key: values.pop(key) for key in ("kind", "name", "description", "fitted_to", "seed")}
    # In quotes, as JSON has it, no text is taken for a number.
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in head.items()}
    texts = {key: UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) for key, text in texts.items()}
    # Lists on one line each: nothing but numbers.
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
    write_file(path, ("".join(f"{key}: {value}\n" for key, value in texts.items()) + text).encode())
