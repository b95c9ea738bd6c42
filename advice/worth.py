"""(f): which parts are not worth building here: how much worse the best composition without a part is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from kvferry.advice.answer import EQUAL, Statement, more
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
    the answer, so that it is compared with what gives up nothing."""

    name: str
    has: Callable[[Composition], bool]
    gives_up: bool = False


PARTS = (
    Part("loading KV over the link", lambda one: one.helped is None and one.load != "local-prefill"),
    Part("KV on storage while decoding", lambda one: one.away == "storage"),
    Part("KV in the host's memory while decoding", lambda one: one.away == "host"),
    Part("attending to a part of the tokens", lambda one: one.helped is None and one.decoding.roles.selective, True),
    Part("KV of 8 bits", lambda one: one.kv_bits < KV_BITS[0], True),
    Part("keeping KV in memory between turns", lambda one: one.helped is None and "memory" in one.keep),
    Part("keeping KV on flash between turns", lambda one: one.helped is None and "flash" in one.keep),
    Part("keeping KV in the cloud between turns", lambda one: one.helped is None and "cloud" in one.keep),
    Part("an eviction other than least recent use", lambda one: one.helped is None and one.evict != "lru"),
    Part("help of another machine", lambda one: one.helped is not None),
)


@dataclass(frozen=True)
class Worth:
    """What a part gains: the best figure without it over the best with it, minus 1. ``with_it``: the best trial that
    has the part; ``without``: None where nothing ran that gives up as little. ``few``: over few turns alone."""

    part: Part
    gain: float
    with_it: Trial
    without: Trial | None
    few: bool = False


def worths(question: Question, ranked: Sequence[Trial], few: Sequence[Trial] = ()) -> list[Worth]:
    """Returns what each part gains, of the parts that some trials have and others have not. `few`: trials over few
    turns, which say it of parts that nothing tried over all turns has."""
    metric, found = question.use.spec.best, []
    for part in PARTS:
        for trials in (ranked, few):
            having = [one for one in trials if part.has(one.composition)]
            lacking = [one for one in trials if not part.has(one.composition)]
            if having and lacking:
                with_it = min(having, key=lambda one: (one.composition.given_up, one.figures[metric]))
                found += _worth(part, with_it, lacking, metric, trials is few)
                break
    return found


def _worth(part: Part, with_it: Trial, lacking: Sequence[Trial], metric: str, few: bool) -> list[Worth]:
    """Returns what a part gains over compositions that give up just as much; nothing where other parts gave something
    up and no such composition ran."""
    loss = with_it.composition.loss
    alike = [one for one in lacking if one.composition.loss == ("none" if part.gives_up else loss)]
    if not alike:
        return [] if loss != "none" else [Worth(part, inf, with_it, None, few)]
    without = min(alike, key=lambda one: one.figures[metric])
    return [Worth(part, without.figures[metric] / with_it.figures[metric] - 1, with_it, without, few)]


def not_worth(question: Question, ranked: Sequence[Trial], few: Sequence[Trial], fit: Fit) -> Statement:
    """Returns which parts gain nothing here, each with the reason that its runs show, and which ones gain most."""
    found = worths(question, ranked, few)
    said: dict[str, list[str]] = {}
    facts: dict[str, float | None] = {}
    for one in found:
        facts[one.part.name] = None if one.without is None else one.gain
        if one.gain < LEAST_GAIN:
            figure = "gains nothing" if one.gain <= EQUAL else f"gains {100 * one.gain:.2g} %"
            figure = f"costs {_cost(one.gain)}" if one.gain < -EQUAL else figure
            reasons = ", ".join(_why(one, fit))
            why = f" ({reasons})" if reasons else ""
            said.setdefault(f"{figure}{_where(one)}", []).append(f"{one.part.name}{why}")
    lines = [f"{figure}: {', '.join(parts)}" for figure, parts in said.items()]
    worth = sorted((one for one in found if one.gain >= LEAST_GAIN), key=lambda one: -one.gain)
    if worth:
        gains = (f"{one.part.name} {_gain(one.gain)}{_where(one)}" for one in worth)
        lines.append(f"worth it: {', '.join(gains)}")
    lines = lines or ["every part that was tried gains something"]
    by_reason: dict[str, list[str]] = {}
    for name, why in question.space.left_out.items():
        by_reason.setdefault(why, []).append(name)
    lines += [f"not tried: {', '.join(names)} ({why})" for why, names in by_reason.items()]
    return Statement("f", "not worth it", tuple(lines), {"gains": facts})


def _where(one: Worth) -> str:
    return " over few turns" if one.few else ""


def _gain(gain: float) -> str:
    if gain == inf:
        return "(nothing else that gives up as little ran)"
    return f"({gain + 1:.3g} times as fast)" if gain >= 1 else f"({100 * gain:.2g} %)"


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
