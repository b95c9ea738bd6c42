"""(f): which parts are not worth building here: how much worse the best composition without a part is.

Parts that stand in for each other are a family: that any of them is built is judged first, and then each beside the
others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from kvferry.advice.answer import EQUAL, Statement, missed, more
from kvferry.advice.composition import KV_BITS, Composition
from kvferry.advice.fit import Fit
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.specs import human

# A part that makes the best less than this much better is not worth its work.
LEAST_GAIN = 0.03


@dataclass(frozen=True)
class Part:
    """Something that can be built or left out. ``has``: whether a composition has it; ``gives_up``: it is what changes
    the answer, so that it is compared with what gives up nothing; ``ways``: parts that do the same, each in its way."""

    name: str
    has: Callable[[Composition], bool]
    gives_up: bool = False
    ways: "tuple[Part, ...]" = ()


HELP = Part("help of another machine", lambda one: one.helped is not None)
# Of a device that is not helped.
PARTS = (
    Part("loading KV over the link", lambda one: one.load != "local-prefill"),
    Part(
        "KV elsewhere while decoding",
        lambda one: one.away is not None,
        ways=(
            Part("KV on storage while decoding", lambda one: one.away == "storage"),
            Part("KV in the host's memory while decoding", lambda one: one.away == "host"),
        ),
    ),
    Part("attending to a part of the tokens", lambda one: one.decoding.roles.selective, True),
    Part("KV of 8 bits", lambda one: one.kv_bits < KV_BITS[0], True),
    Part(
        "keeping KV between turns",
        lambda one: one.keep != "drop",
        ways=(
            Part("keeping KV in memory between turns", lambda one: "memory" in one.keep),
            Part("keeping KV on flash between turns", lambda one: "flash" in one.keep),
            Part("keeping KV in the cloud between turns", lambda one: "cloud" in one.keep),
        ),
    ),
    Part("an eviction other than least recent use", lambda one: one.evict != "lru"),
)


@dataclass(frozen=True)
class Worth:
    """What a part gains: the best figure without it over the best with it, minus 1. ``with_it``: the best trial that
    has the part; ``without``: None where nothing else ran that gives up as little, so that nothing is compared.
    ``few``: over few turns alone; ``beside``: the other ways to do the same, and not without any; ``missed``: limits
    that one of the two misses, as nothing else was there to compare."""

    part: Part
    gain: float
    with_it: Trial
    without: Trial | None
    few: bool = False
    beside: bool = False
    missed: str = ""

    @property
    def name(self) -> str:
        return f"{self.part.name} rather than another way" if self.beside else self.part.name


def worths(
    question: Question,
    ranked: Sequence[Trial],
    few: Sequence[Trial] = (),
    missing: Sequence[Trial] = (),
    few_missing: Sequence[Trial] = (),
) -> list[Worth]:
    """Returns what each part gains, of the parts that some trials have and others have not; where help is best, of
    help alone. `few`: trials over few turns, which say it of parts that nothing tried over all turns has; `missing`
    and `few_missing`: trials that miss a limit, which say it of the rest."""
    every = (ranked, few, [*ranked, *missing], [*few, *few_missing])
    help_gains = _judged(HELP, every, question)
    if ranked[0].composition.helped is not None:
        return help_gains
    found: list[Worth] = []
    over = tuple([one for one in trials if one.composition.helped is None] for trials in every)
    for part in PARTS:
        tried = [way for way in part.ways if any(way.has(one.composition) for trials in over for one in trials)]
        of_any = _judged(tried[0] if len(tried) == 1 else part, over, question)
        found += of_any
        if len(tried) > 1 and all(one.gain >= LEAST_GAIN for one in of_any):
            among = tuple([one for one in trials if part.has(one.composition)] for trials in over)
            found += [one for way in tried for one in _judged(way, among, question, beside=True)]
    return [*found, *help_gains]


def _judged(part: Part, over: Sequence[Sequence[Trial]], question: Question, beside: bool = False) -> list[Worth]:
    """Returns what a part gains by the first of several sets of trials in which some have it and others have not:
    those over all turns, then over few, and then both with what misses limits."""
    metric = question.use.spec.best
    for n, trials in enumerate(over):
        having = [one for one in trials if part.has(one.composition)]
        lacking = [one for one in trials if not part.has(one.composition)]
        if having and lacking:
            fails = {id(one): bool(one.broken(question.limits)) for one in having}
            with_it = min(having, key=lambda one: (fails[id(one)], one.composition.given_up, one.figures[metric]))
            found = _worth(part, with_it, lacking, metric, n % 2 == 1, beside)
            return [replace(one, missed=_missed(question, one)) for one in found]
    return []


def _missed(question: Question, worth: Worth) -> str:
    pair = [worth.with_it, *([] if worth.without is None else [worth.without])]
    return ", ".join(dict.fromkeys(said for one in pair if (said := missed(question, one))))


def _worth(part: Part, with_it: Trial, lacking: Sequence[Trial], metric: str, few: bool, beside: bool) -> list[Worth]:
    """Returns what a part gains over compositions that give up just as much; nothing where other parts gave something
    up and no such composition ran."""
    loss = with_it.composition.loss
    alike = [one for one in lacking if one.composition.loss == ("none" if part.gives_up else loss)]
    if not alike:
        return [] if loss != "none" else [Worth(part, inf, with_it, None, few, beside)]
    without = min(alike, key=lambda one: one.figures[metric])
    return [Worth(part, without.figures[metric] / with_it.figures[metric] - 1, with_it, without, few, beside)]


def not_worth(
    question: Question,
    ranked: Sequence[Trial],
    few: Sequence[Trial],
    fit: Fit,
    missing: Sequence[Trial] = (),
    few_missing: Sequence[Trial] = (),
) -> Statement:
    """Returns which parts gain nothing here, each with the reason that its runs show, and which ones gain most."""
    found = worths(question, ranked, few, missing, few_missing)
    compared = [one for one in found if one.without is not None]
    said: dict[str, list[str]] = {}
    for one in compared:
        if one.gain < LEAST_GAIN:
            figure = "gains nothing" if one.gain <= EQUAL else f"gains {100 * one.gain:.2g} %"
            figure = f"costs {_cost(one.gain)}" if one.gain < -EQUAL else figure
            reasons = ", ".join([*_with(one, ranked[0]), *_why(one, fit)])
            why = f" ({reasons})" if reasons else ""
            said.setdefault(f"no, {figure}{_where(one)}", []).append(f"{one.name}{why}")
    lines = [f"{figure}: {', '.join(parts)}" for figure, parts in said.items()]
    worth = sorted((one for one in compared if one.gain >= LEAST_GAIN), key=lambda one: -one.gain)
    if worth:
        gains = (f"{one.name} ({', '.join([_gain(one.gain), *_with(one, ranked[0])])}){_where(one)}" for one in worth)
        lines.append(f"yes: {', '.join(gains)}")
    if not compared:
        lines.append("not known")
    by_reason: dict[str, list[str]] = {}
    for name, why in question.space.left_out.items():
        by_reason.setdefault(why, []).append(name)
    lines += [f"not tried: {', '.join(names)} ({why})" for why, names in by_reason.items()]
    if alone := [one.name for one in found if one.without is None]:
        lines.append(f"not compared, as nothing else ran that gives up as little: {', '.join(alone)}")
    if unknown := list(_not_compared(question, ranked[0].composition, found)):
        lines.append(f"not compared, as too little ran or fitted: {', '.join(unknown)}")
    facts = {one.name: None if one.without is None else one.gain for one in found}
    return Statement("f", "worth it?", tuple(lines), {"gains": facts})


def _not_compared(question: Question, best: Composition, found: Sequence[Worth]) -> Iterator[str]:
    """Yields the parts that there is a choice of here, and of which no runs say what they gain."""
    judged = {one.part for one in found}
    space = question.space
    choices = [*space.start, *(near for one in space.start[:1] for near in space.neighbours(one))]
    for part in (*(PARTS if best.helped is None else ()), HELP):
        among = [*choices, *(space.helpers if part is HELP else ())]
        if not judged & {part, *part.ways} and len({part.has(one) for one in among}) == 2:
            yield part.name


def _with(one: Worth, best: Trial) -> Iterator[str]:
    """What the best with a part gives up besides, where the choice does not."""
    composition = one.with_it.composition
    if one.part.gives_up or composition.given_up <= best.composition.given_up:
        return
    if composition.kv_bits < KV_BITS[0]:
        yield f"with KV of {composition.kv_bits:g} bits"
    elif composition.decoding.roles.selective:
        yield f"with {composition.decode}"
    else:
        yield f"with {composition.load}"


def _where(one: Worth) -> str:
    beside = f" beside what misses {one.missed}" if one.missed else ""
    return f" over few turns{beside}" if one.few else beside


def _gain(gain: float) -> str:
    return f"{gain + 1:.3g} times as fast" if gain >= 1 else f"{100 * gain:.2g} %"


def _cost(gain: float) -> str:
    said = more(1 / (1 + gain))
    return f"{said} as much" if said.endswith("times") else said


def _why(one: Worth, fit: Fit) -> Iterator[str]:
    """What the figures of the best trial with the part say."""
    if one.without is None:
        return
    figures, name, without = one.with_it.figures, one.part.name, one.without.composition
    holds = fit.context if fit.in_memory is None else fit.in_memory
    if "while decoding" in name and without.away is None and without.helped is None and holds:
        more = "at least " if fit.is_least and fit.in_memory is None else ""
        yield f"up to {more}{human.count(holds)} tokens it fits in memory"
    if name.startswith("keeping KV on flash") and not figures.get("found_on_flash_share"):
        yield "nothing was found there that was not in memory"
    if name.startswith("keeping KV in the cloud") and not figures.get("found_in_cloud_share"):
        yield "nothing came from there"
    if name.startswith("an eviction"):
        same = all(
            abs(figures.get(key, 0.0) - one.without.figures.get(key, 0.0)) < 1e-9
            for key in ("found_in_memory_share", "found_on_flash_share", "found_in_cloud_share")
        )
        if same:
            yield "every eviction found the same"
    if name.startswith("loading") and not figures.get("found_in_cloud_share"):
        yield "nothing lay in the cloud alone"
