"""(b) and (c): the best composition, and what the next ones cost more."""

from collections.abc import Collection, Iterator, Sequence

from kvferry.advice.answer import (
    AS_GOOD,
    FIGURES,
    RUNNERS_UP,
    Statement,
    giving_up,
    missed,
    more,
    others_than,
    runners_up,
    shown,
)
from kvferry.advice.composition import Composition
from kvferry.advice.quality import is_lossless, lossless
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial

_LOSS = {"none": "", "coarser": ", coarser KV", "part": ", attends to a part of the tokens"}


def chosen(question: Question, ranked: Sequence[Trial], few: str = "") -> Statement:
    """Returns what was chosen, with what is as good. `few`: over how many turns it was judged, "": over all."""
    best, metric = ranked[0], question.use.spec.best
    figures = [_figure(key, best) for key in FIGURES if key in best.figures]
    name = best.composition.name + _LOSS[best.composition.loss]
    lines = [f"{name}: {few}" if few else name, "; ".join(figures)]
    equal = [
        one.composition
        for one in ranked[1:]
        if one.composition.loss == best.composition.loss
        and abs(one.figures[metric] / best.figures[metric] - 1) <= AS_GOOD
    ]
    parts = list(dict.fromkeys(", ".join(_changed(best, one)) for one in equal))
    if parts:
        lines.append(f"as good here: {'; '.join(parts[:6])}{' ...' if len(parts) > 6 else ''}")
    kept = [f"--{one.spelled}" for one in question.limits]
    if kept:
        lines.append(f"{', '.join(kept)}: {few}" if few else f"it keeps {', '.join(kept)}")
    return Statement("b", "best", tuple(lines), {"as_good": parts, "kept": kept, "kept_over_all_turns": not few})


def _figure(key: str, best: Trial) -> str:
    said = f"{FIGURES[key]} {shown(key, best.figures[key])}"
    if key != "energy_j":
        return said
    helper_j = best.figures.get("cloud_energy_j")
    beside = "" if helper_j is None else f" and the helper {shown(key, helper_j)}"
    return f"{said} without idle time{beside}"


def _changed(best: Trial, other: object) -> Iterator[str]:
    for part in best.composition.differs(other):  # type: ignore[arg-type]
        value = getattr(other, part)
        if value is not None:
            yield f"{part.replace('_', ' ')} {value}"


def runners(
    question: Question,
    ranked: Sequence[Trial],
    few: Sequence[Trial] = (),
    tried: Collection[Composition] = (),
    missing: Sequence[Trial] = (),
) -> Statement:
    """Returns the runners-up, with what each costs more than the best, or gives up; where fewer than three keep the
    limits, also what misses one, of `missing`. `few`: trials over few turns, which
    say it of what gives up more where nothing tried over all turns does. `tried`: all compositions that were run."""
    best, metric = ranked[0], question.use.spec.best
    lines = [
        f"{one.composition.name}{_LOSS[one.composition.loss]}: {', '.join(_costs(one, best, metric))}"
        for one in runners_up(ranked, metric)
    ]
    gives = giving_up(ranked, metric)
    room = RUNNERS_UP - len(lines)
    lines = lines or [_no_other(question, ranked, tried, bool(gives))]
    beside = [ranked[0], *runners_up(ranked, metric)]
    lines += [
        f"misses {missed(question, one)}: {one.composition.name}{_LOSS[one.composition.loss]}: "
        + (", ".join(_costs(one, best, metric)) or "the same")
        for one in others_than(beside, missing, metric)[:room]
    ]
    if not is_lossless(best):
        lines.append(_losing_nothing(lossless(ranked, metric), best, metric))
    lines += [_giving_up(one, best, metric) for one in gives]
    # The same run of the best composition first, which the others are better than.
    alike = [one for one in few if one.composition == best.composition]
    own = shown(metric, alike[0].figures[metric]) if alike else ""
    for one in giving_up([*alike, *few], metric) if alike else ():
        if one.composition.loss not in [known.composition.loss for known in gives]:
            lines.append(f"{_giving_up(one, alike[0], metric)}, over few turns, where the best has {own}")
    return Statement("c", "runners-up", tuple(lines))


def _no_other(question: Question, ranked: Sequence[Trial], tried: Collection[Composition], better: bool) -> str:
    """Says why there is no runner-up, by what was tried over as many turns as the best. `better`: what gives up more
    is."""
    others = len(set(tried) - {ranked[0].composition})
    if len(ranked) > 1:
        return f"what else was tried is as good, or gives up more{'' if better else ' and is no better'}"
    if not others:
        return "no other composition was tried"
    keeps = ("keep", "the limits") if question.limits or question.memory else ("run", "here")
    if set(question.space.everything()) <= set(tried):
        return f"no other composition {keeps[0]}s {keeps[1]}"
    if others == 1:
        return f"the only other one that was tried does not {' '.join(keeps)}"
    return f"none of the {others} others that were tried {keeps[0]}s {keeps[1]}"


def _losing_nothing(exact: Trial | None, best: Trial, metric: str) -> str:
    if exact is None:
        return "losing nothing: none that was run"
    ratio = more(exact.figures[metric] / best.figures[metric])
    return (
        f"losing nothing: {exact.composition.name}: {FIGURES[metric]} {shown(metric, exact.figures[metric])} ({ratio})"
    )


def _costs(one: Trial, best: Trial, metric: str) -> Iterator[str]:
    """Yields how much more or less it takes than the best, by figure; equal figures are left out."""
    for key in dict.fromkeys((metric, "ttft_s", "energy_j", "memory_peak_bytes")):
        if best.figures.get(key) and key in one.figures:
            said = more(one.figures[key] / best.figures[key])
            if said != more(1.0):
                yield f"{FIGURES[key]} {said}"


def _giving_up(one: Trial, best: Trial, metric: str) -> str:
    figure, ratio = one.figures[metric], one.figures[metric] / best.figures[metric]
    what = f"{one.composition.name}{_LOSS[one.composition.loss]}"
    return f"giving up more: {what}: {FIGURES[metric]} {shown(metric, figure)} ({more(ratio)})"
