"""The search: first over few turns, so that there is an answer within seconds, then over all turns of the use.

A composition has some ten parts, and few of them matter to each other. From the best one so far, every composition
that differs in one part is tried, and the best of these is gone on from, until none is better. Where one does not fit
in memory, leaner ones are tried in its place. Runs say what is better.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from time import monotonic, process_time

from kvferry.advice.climb import Climb
from kvferry.advice.composition import Composition, Loss
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.advice.trials import Trials

# Turns of the first search, and the processor time after which nothing more is begun in it.
_FEW_TURNS, _FIRST_S = 3, 7.0
# Share of all time after which it ends too, where others keep the processor busy: the rest is for all turns.
_FIRST_SHARE = 0.5
# Share of the time for compositions that give up nothing; the rest is for those that do.
_EXACT_SHARE = 0.6


class Search:
    """The trials of a question as they come. `until_s`: on the monotonic clock, when nothing more is begun."""

    def __init__(self, question: Question, done: Callable[[], None], until_s: float = inf) -> None:
        self.question = question
        is_short = len(question.turns) <= _FEW_TURNS
        few = None if is_short else Trials(question, _FEW_TURNS, done)
        self.whole = Trials(question, None, done, few)
        # A use of few turns is run once.
        self.few = self.whole if few is None else few
        self.climb = Climb(question, self.few, self.whole, until_s)
        self._refined = False

    @property
    def trials(self) -> Trials:
        """The trials over all turns; those over few as long as none of the former keeps the limits and others are to
        come."""
        return self.whole if self._refined or self.whole.ranked() else self.few

    @property
    def ranked(self) -> list[Trial]:
        """Trials that keep the limits, best first; over few turns without those that are known to fail over all, where
        there are others."""
        if not self.is_coarse:
            return self.trials.ranked()
        left = [one for one in self.few.ranked() if one.composition not in self.whole]
        return [one for one in left if not self.has_failed(one)] or left

    def has_failed(self, few: Trial) -> bool:
        """Whether what ran over few turns fails over all of them: itself, or, whatever keeps its KV between turns, all
        that decode as it does, as memory did not hold them."""
        alike = [one for one in self.whole.all if _as_one_turn(one) == _as_one_turn(few)]
        for one in alike:
            if one.composition == few.composition:
                return bool(self.whole.rank(one)[0])
        return bool(alike) and all(one.outcome == "out_of_memory" for one in alike)

    @property
    def is_coarse(self) -> bool:
        """Whether trials are over few turns of more."""
        return self.trials is not self.whole

    @property
    def judged_turns(self) -> tuple[int, int]:
        """Returns over how many turns the choice is judged, beside others, and how many the use has."""
        turns = len(self.question.turns)
        return _FEW_TURNS if self.is_coarse else turns, turns

    @property
    def tried(self) -> tuple[int, int]:
        """How many compositions were run, and how many over all turns."""
        return len({one.composition for one in (*self.few.all, *self.whole.all)}), len(self.whole.all)

    def first(self) -> None:
        """Searches over few turns. Ends early where runs take long."""
        began_s, until_s, space = process_time(), self.climb.until_s, self.question.space
        until_s = until_s if until_s == inf else monotonic() + _FIRST_SHARE * (until_s - monotonic())
        goes_on = lambda: process_time() - began_s < _FIRST_S and monotonic() < until_s  # noqa: E731
        exact = [one for one in space.start if one.loss == "none"]
        tried = [one for inside in exact[:1] for one in self.climb.inside(self.few, inside, goes_on)]
        tried += self.climb.each(self.few, [*exact[1:], *space.helpers], "none", goes_on)
        if tried:
            best = self.climb.best(self.few, tried).composition
            self.climb.each(self.few, [one for one in space.neighbours(best) if one.loss == "none"], "none", goes_on)
        near = [one for each in tried[:1] for one in space.neighbours(each.composition)]
        self.climb.each(self.few, [*space.start, *near], "part", goes_on)

    def refine(self) -> None:
        """Searches over all turns: the best that gives up nothing; then, with its other parts, what gives up more; and
        then what was better over few turns and gives up more."""
        space, began_s = self.question.space, monotonic()
        self.climb.cut_short = not self.few.all
        begin = self._first_of("none")
        if begin is not None:
            inside = begin if begin.away is None else space.start[0]
            if inside.loss == "none":
                self.climb.inside(self.whole, inside, lambda: self.climb.in_time)
            begin = self._one_that_runs() or begin
            self.climb.descend(begin, space.neighbours, "none", began_s + _EXACT_SHARE * (self.climb.until_s - began_s))
        for one in space.helpers:
            if not self.climb.is_late:
                self.whole.of(one)
        near = self._best_of("none") or self._first_of("part")
        if near is not None:
            self.climb.descend(near, self._coarser, "coarser")
            self.climb.descend(near, space.with_decodes, "part")
            sparse = self._best_of("part")
            if sparse is not None and sparse.decoding.tunable:
                self.climb.descend(sparse, lambda one: self._parts_of(one, ("group_tokens",)), "part")
        if self.question.any_quality and (ranked := self.whole.ranked()):
            self.climb.descend(ranked[0].composition, space.neighbours, "part")
        self._confirm()
        self._refined = bool(self.whole.all) and self.climb.in_time

    def judge(self, until_s: float) -> None:
        """Where nothing tried over all turns keeps the limits yet, tries over them what does over few, the best first,
        until one lasts: a choice is known to keep its limits over all turns. `until_s`: as of the search."""
        for one in self.ranked if self.is_coarse else ():
            if monotonic() >= until_s:
                self.climb.cut_short = True
                return
            if not self.whole.rank(self.whole.of(one.composition))[0]:
                return

    def _confirm(self) -> None:
        """Tries over all turns what gives up more and was better over few, the best of each kind that keeps the
        limits: so that nothing is named which does not last."""
        metric, best = self.question.use.spec.best, self._best_of("none")
        if best is None or best not in self.few:
            return
        own = self.few.of(best).figures.get(metric, inf)
        for loss in ("coarser", "part"):
            better = [one for one in self.few.ranked() if one.composition.loss == loss and one.figures[metric] < own]
            for one in better:
                if self.climb.is_late or not self.whole.rank(self.whole.of(one.composition))[0]:
                    break

    def _parts_of(self, one: Composition, parts: Sequence[str]) -> list[Composition]:
        return [other for other in self.question.space.neighbours(one) if set(one.differs(other)) <= set(parts)]

    def _coarser(self, one: Composition) -> list[Composition]:
        """Other bits and other loads; and other decode systems with these bits, as KV may fit in memory then."""
        changed = self._parts_of(one, ("kv_bits", "load"))
        of_bits = [other for other in changed if other.kv_bits != one.kv_bits]
        return [*(decoding for other in of_bits for decoding in self.question.space.with_decodes(other)), *changed]

    def _first_of(self, loss: Loss) -> Composition | None:
        """The best over few turns without help that gives up this and no more; None: there is none."""
        unhelped = (one for one in self.few.all if one.composition.helped is None)
        allowed = [one for one in unhelped if one.composition.gives_up_no_more_than(loss)]
        return self.climb.best(self.few, allowed).composition if allowed else None

    def _one_that_runs(self) -> Composition | None:
        """Where the time was over before anything that gives up nothing ran over few turns, the first that runs over
        all; else None."""
        if any(one.is_done and one.composition.loss == "none" for one in self.few.all):
            return None
        for one in self.question.space.start:
            found = self.climb.each(self.whole, [one] * (one.loss == "none"), "none", lambda: self.climb.in_time)
            if found and found[-1].is_done:
                return found[-1].composition
        return None

    def _best_of(self, loss: Loss) -> Composition | None:
        """The best that gives up just this and is no help; None: there is none."""
        ranked = (one.composition for one in self.whole.ranked())
        return next((one for one in ranked if one.loss == loss and one.helped is None), None)


def _as_one_turn(one: Trial) -> Composition:
    """The composition with the usual value of each part that makes no difference to the memory of one turn."""
    usual = Composition()
    return replace(one.composition, load=usual.load, keep=usual.keep, evict=usual.evict)
