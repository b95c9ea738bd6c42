"""How sure a run's figures are, and what says so."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kvferry.analysis.intervals import Effect, intervals_of
from kvferry.analysis.repeats import Metrics, Range

RUNTIME = "runtime"
# Decoding with weights that a CPU computes with beside the main processor.
ON_CPU = "decoding on the CPU"
STORAGE = "storage"
# In what number format prompts are multiplied with quantised weights.
PRECISION = "precision"


@dataclass(frozen=True)
class Sureness:
    """``effects``: of what is not known exactly on the figures, `own`. ``evidence``: JSON that says by what it is
    known; its "not_known" says what nothing is known of, and why."""

    own: Metrics
    effects: tuple[Effect, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=lambda: {"not_known": {}})

    @cached_property
    def intervals(self) -> dict[str, Range]:
        """The 80 % interval of each metric that something is known of."""
        return intervals_of(self.own, self.effects)

    @property
    def same_on_all_runtimes(self) -> bool:
        """Whether the runtime is only assumed, and makes no difference."""
        moved = [effect.deviations for effect in self.effects if effect.name.startswith(RUNTIME)]
        return RUNTIME in self.evidence and not any(moved)

    @property
    def remarks(self) -> list[str]:
        """For users, what the intervals rest on, and what they leave out."""
        return how_sure([self.evidence])


def how_sure(evidence: Iterable[Mapping[str, Any]], systems: Iterable[str] = ()) -> list[str]:
    """What intervals of one or more results rest on, and what they leave out: a line for each. `systems`: their names,
    told with what not all of them rest on."""
    known = dict[str, list[str]]()
    unknown = dict[str, dict[str, None]]()
    named = list(systems)
    for n, one in enumerate(evidence):
        for line in _known(one):
            known.setdefault(line, []).append(named[n] if named else "")
        for name, why in one.get("not_known", {}).items():
            unknown.setdefault(why, {})[name] = None
    lacking = "; ".join(f"{', '.join(names)}: {why}" for why, names in unknown.items())
    said = [f"{', '.join(of)}: {line}" if named and len(of) < len(named) else line for line, of in known.items()]
    lines = [f"80 % intervals: {'; '.join(said)}"] if known else []
    return [*lines, *([f"{'not in them' if known else 'no intervals'}: {lacking}"] if lacking else [])]


def _known(evidence: Mapping[str, Any]) -> Iterator[str]:
    for what in ("prefill", "decoding", ON_CPU, "power", STORAGE):
        if what in evidence:
            one = evidence[what]
            rows, devices = one["rows"], one["devices"]
            of_what = {
                "power": f"{rows} measured on {devices} devices",
                STORAGE: f"{rows} printed cells of {devices} methods and models that were left out of the fit",
            }.get(what, f"{rows} rates of {devices} devices that were left out of the fit")
            where = f"{what}: " if what == ON_CPU else ""
            yield f"{where}{one['of']}: {of_what}, a factor of {one['factor']:.2f} up and down{_least(one)}"
    if RUNTIME in evidence:
        yield f"what it comes to on the known runtimes ({', '.join(evidence[RUNTIME]['over'])})"
    if PRECISION in evidence:
        yield f"{' or '.join(evidence[PRECISION]['over'])} products of prompts: no rate tells which, each as likely"
    if "runs" in evidence:
        yield f"errors of {evidence['runs']['of']}{_least(evidence['runs'])}"


def _least(of: Mapping[str, Any]) -> str:
    """Says where an interval holds less than it should, as it was measured on too few."""
    return f" (the largest error, which holds {of['devices']} of {of['devices'] + 1})" if "level" in of else ""
