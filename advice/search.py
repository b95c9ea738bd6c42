"""The search: first over few turns, so that there is an answer within seconds, then over all turns of the use.

A composition has some ten parts, and few of them matter to each other. From the best one so far, every composition
that differs in one part is tried, and the best of these is gone on from, until none is better. Where one does not fit
in memory, leaner ones are tried in its place. Runs say what is better.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic, process_time

from kvferry.advice.composition import Composition, Loss
from kvferry.advice.preference import in_order
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.advice.trials import Trials

# Turns of the first search, and the processor time after which nothing more is begun in it.
_FEW_TURNS, _FIRST_S = 3, 7.0
# Share of all time after which it ends too, where others keep the processor busy: the rest is for all turns.
_FIRST_SHARE = 0.5
# Decode systems that were this many times as slow over few turns are not tried over all.
_HOPELESS = 1.5
_MOST_ROUNDS = 4
# Figures within this share of each other differ by rounding alone.
_SAME = 1e-9
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
        self._until_s, self._refined = until_s, False
        # Whether something was left untried for want of time.
        self.cut_short = False

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

    @property
    def in_time(self) -> bool:
        return monotonic() < self._until_s

    @property
    def is_late(self) -> bool:
        """Whether the time is over; what asks has something left to try, and it is noted."""
        self.cut_short = self.cut_short or not self.in_time
        return not self.in_time

    def first(self) -> None:
        """Searches over few turns. Ends early where runs take long."""
        began_s, until_s, space = process_time(), self._until_s, self.question.space
        until_s = until_s if until_s == inf else monotonic() + _FIRST_SHARE * (until_s - monotonic())
        goes_on = lambda: process_time() - began_s < _FIRST_S and monotonic() < until_s  # noqa: E731
        exact = [one for one in space.start if one.loss == "none"]
        tried = [one for inside in exact[:1] for one in self._inside(self.few, inside, goes_on)]
        tried += self._each(self.few, [*exact[1:], *space.helpers], "none", goes_on)
        if tried:
            best = self._best(self.few, tried).composition
            self._each(self.few, [one for one in space.neighbours(best) if one.loss == "none"], "none", goes_on)
        near = [one for each in tried[:1] for one in space.neighbours(each.composition)]
        self._each(self.few, [*space.start, *near], "part", goes_on)

    def refine(self) -> None:
        """Searches over all turns: the best that gives up nothing; then, with its other parts, what gives up more; and
        then what was better over few turns and gives up more."""
        space, began_s = self.question.space, monotonic()
        self.cut_short = not self.few.all
        begin = self._first_of("none")
        if begin is not None:
            inside = begin if begin.away is None else space.start[0]
            if inside.loss == "none":
                self._inside(self.whole, inside, lambda: self.in_time)
            begin = self._one_that_runs() or begin
            self._descend(begin, space.neighbours, "none", began_s + _EXACT_SHARE * (self._until_s - began_s))
        for one in space.helpers:
            if not self.is_late:
                self.whole.of(one)
        near = self._best_of("none") or self._first_of("part")
        if near is not None:
            self._descend(near, self._coarser, "coarser")
            self._descend(near, space.with_decodes, "part")
            sparse = self._best_of("part")
            if sparse is not None and sparse.decoding.tunable:
                self._descend(sparse, lambda one: self._parts_of(one, ("group_tokens",)), "part")
        if self.question.any_quality and (ranked := self.whole.ranked()):
            self._descend(ranked[0].composition, space.neighbours, "part")
        self._confirm()
        self._refined = bool(self.whole.all) and self.in_time

    def judge(self, until_s: float) -> None:
        """Where nothing tried over all turns keeps the limits yet, tries over them what does over few, the best first,
        until one lasts: a choice is known to keep its limits over all turns. `until_s`: as of the search."""
        for one in self.ranked if self.is_coarse else ():
            if monotonic() >= until_s:
                self.cut_short = True
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
                if self.is_late or not self.whole.rank(self.whole.of(one.composition))[0]:
                    break

    def _inside(self, trials: Trials, one: Composition, goes_on: Callable[[], bool]) -> list[Trial]:
        """Tries KV in memory, and where that does not hold it at 16 bits, at fewer: of all compositions the one that is
        most unlike the rest then, and the most promising. Returns those that give up nothing."""
        tried = self._each(trials, [one], "none", goes_on)
        if one.away is None and all(each.outcome == "out_of_memory" for each in tried):
            self._each(trials, [one], "coarser", goes_on)
        return tried

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
        return self._best(self.few, allowed).composition if allowed else None

    def _one_that_runs(self) -> Composition | None:
        """Where the time was over before anything that gives up nothing ran over few turns, the first that runs over
        all; else None."""
        if any(one.is_done and one.composition.loss == "none" for one in self.few.all):
            return None
        for one in self.question.space.start:
            found = self._each(self.whole, [one] * (one.loss == "none"), "none", lambda: self.in_time)
            if found and found[-1].is_done:
                return found[-1].composition
        return None

    def _best(self, trials: Trials, ones: Sequence[Trial]) -> Trial:
        """The best of some trials where what is given up does not count, of those that keep the limits if any does."""
        kept = [one for one in ones if not trials.fails(one)]
        return in_order(self.question, kept or ones, _SAME, any_loss=True)[0]

    def _best_of(self, loss: Loss) -> Composition | None:
        """The best that gives up just this and is no help; None: there is none."""
        ranked = (one.composition for one in self.whole.ranked())
        return next((one for one in ranked if one.loss == loss and one.helped is None), None)

    def _descend(
        self, begin: Composition, near: Callable[[Composition], list[Composition]], loss: Loss, until_s: float = inf
    ) -> None:
        """Goes on to the best neighbour that gives up no more than this, until none is better or it is late."""
        if self.is_late:
            return
        best = self.whole.of(begin)
        for _ in range(_MOST_ROUNDS):
            allowed = [one for one in near(best.composition) if one.gives_up_no_more_than(loss)]
            # Where even the best so far does not fit, or keeps no limits, nothing is hopeless, and another way to
            # decode is most likely to.
            worth_it, unlike = partial(self._is_worth_it, best.composition), partial(self._unlike, best.composition)
            hopeful = sorted(allowed, key=unlike) if self.whole.rank(best)[0] else filter(worth_it, allowed)
            found = self._each(self.whole, hopeful, loss, lambda: self.in_time and monotonic() < until_s)
            better = self._best(self.whole, [best, *found])
            if better is best:
                return
            best = better

    def _unlike(self, best: Composition, one: Composition) -> tuple[bool, tuple[bool, float]]:
        """The order in which compositions are tried where the best one so far will not do: first what decodes
        otherwise, by what it came to over few turns."""
        over_few = _within(self.few, self.few.of(one)) if one in self.few else (True, inf)
        return (one.decode, one.away) == (best.decode, best.away), over_few

    def _each(
        self, trials: Trials, ones: Iterable[Composition], loss: Loss, goes_on: Callable[[], bool]
    ) -> list[Trial]:
        """Tries compositions, and in place of one that memory does not hold the first leaner one that it does, of those
        that give up no more than `loss`."""
        found: list[Trial] = []
        for one in ones:
            leaner = (other for other in self.question.space.leaner(one) if other.gives_up_no_more_than(loss))
            for other in (one, *leaner):
                if not goes_on():
                    self.cut_short = True
                    return found
                found.append(trials.of(other))
                if found[-1].outcome != "out_of_memory":
                    break
        return found

    def _is_worth_it(self, best: Composition, one: Composition) -> bool:
        """Whether neither it nor, whatever its other parts, its decode system was hopeless over few turns beside the
        best so far: what was better over few turns may not fit over all."""
        of_decode = [t for t in self.few.all if (t.composition.decode, t.composition.away) == (one.decode, one.away)]
        of_itself = [t for t in of_decode if t.composition == one]
        metric = self.question.use.spec.best
        known = [t.figures[metric] for t in (of_itself or of_decode) if metric in t.figures]
        own = self.few.of(best).figures.get(metric) if best in self.few else None
        return own is None or not known or min(known) <= _HOPELESS * own


def _within(trials: Trials, one: Trial) -> tuple[bool, float]:
    """The rank of a trial where what is given up does not count."""
    not_kept, _, figure = trials.rank(one)
    return not_kept, figure


def _as_one_turn(one: Trial) -> Composition:
    """The composition with the usual value of each part that makes no difference to the memory of one turn."""
    usual = Composition()
    return replace(one.composition, load=usual.load, keep=usual.keep, evict=usual.evict)
