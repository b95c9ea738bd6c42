"""Climbing: from the best composition so far to the best of its neighbours, until none is better."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from time import monotonic

from kvferry.advice.composition import Composition, Loss
from kvferry.advice.preference import in_order
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.advice.trials import Trials

# Decode systems that were this many times as slow over few turns are not tried over all.
_HOPELESS = 1.5
_MOST_ROUNDS = 4
# Figures within this share of each other differ by rounding alone.
_SAME = 1e-9


class Climb:
    """Tries compositions over all turns, with what is known of them over few, as long as there is time: nothing more is
    begun after `until_s`, on the monotonic clock."""

    def __init__(self, question: Question, few: Trials, whole: Trials, until_s: float) -> None:
        self._question, self._few, self._whole, self.until_s = question, few, whole, until_s
        # Whether something was left untried for want of time.
        self.cut_short = False

    @property
    def in_time(self) -> bool:
        return monotonic() < self.until_s

    @property
    def is_late(self) -> bool:
        """Whether the time is over; what asks has something left to try, and it is noted."""
        self.cut_short = self.cut_short or not self.in_time
        return not self.in_time

    def descend(
        self, begin: Composition, near: Callable[[Composition], list[Composition]], loss: Loss, until_s: float = inf
    ) -> None:
        """Goes on to the best neighbour that gives up no more than this, until none is better or it is late."""
        if self.is_late:
            return
        best = self._whole.of(begin)
        for _ in range(_MOST_ROUNDS):
            allowed = [one for one in near(best.composition) if one.gives_up_no_more_than(loss)]
            # Try everything while the best so far does not fit or breaks a limit: first what decodes another way, as
            # that is the likeliest to fit.
            worth_it, unlike = partial(self.is_worth_it, best.composition), partial(self._unlike, best.composition)
            hopeful = sorted(allowed, key=unlike) if self._whole.rank(best)[0] else filter(worth_it, allowed)
            found = self.each(self._whole, hopeful, loss, lambda: self.in_time and monotonic() < until_s)
            better = self.best(self._whole, [best, *found])
            if better is best:
                return
            best = better

    def _unlike(self, best: Composition, one: Composition) -> tuple[bool, tuple[bool, float]]:
        """The order in which compositions are tried where the best one so far will not do: first what decodes
        otherwise, by what it came to over few turns."""
        over_few = _within(self._few, self._few.of(one)) if one in self._few else (True, inf)
        return (one.decode, one.away) == (best.decode, best.away), over_few

    def each(self, trials: Trials, ones: Iterable[Composition], loss: Loss, goes_on: Callable[[], bool]) -> list[Trial]:
        """Tries compositions, and in place of one that memory does not hold the first leaner one that it does, of those
        that give up no more than `loss`."""
        found: list[Trial] = []
        for one in ones:
            leaner = (other for other in self._question.space.leaner(one) if other.gives_up_no_more_than(loss))
            for other in (one, *leaner):
                if not goes_on():
                    self.cut_short = True
                    return found
                found.append(trials.of(other))
                if found[-1].outcome != "out_of_memory":
                    break
        return found

    def is_worth_it(self, best: Composition, one: Composition) -> bool:
        """Whether neither it nor, whatever its other parts, its decode system was hopeless over few turns beside the
        best so far: what was better over few turns may not fit over all."""
        of_decode = [t for t in self._few.all if (t.composition.decode, t.composition.away) == (one.decode, one.away)]
        of_itself = [t for t in of_decode if t.composition == one]
        metric = self._question.use.spec.best
        known = [t.figures[metric] for t in (of_itself or of_decode) if metric in t.figures]
        own = self._few.of(best).figures.get(metric) if best in self._few else None
        return own is None or not known or min(known) <= _HOPELESS * own

    def inside(self, trials: Trials, one: Composition, goes_on: Callable[[], bool]) -> list[Trial]:
        """Tries KV in memory, and where that does not hold it at 16 bits, at fewer: of all compositions the one that is
        most unlike the rest then, and the most promising. Returns those that give up nothing."""
        tried = self.each(trials, [one], "none", goes_on)
        if one.away is None and all(each.outcome == "out_of_memory" for each in tried):
            self.each(trials, [one], "coarser", goes_on)
        return tried

    def best(self, trials: Trials, ones: Sequence[Trial]) -> Trial:
        """The best of some trials where what is given up does not count, of those that keep the limits if any does."""
        kept = [one for one in ones if not trials.fails(one)]
        return in_order(self._question, kept or ones, _SAME, any_loss=True)[0]


def _within(trials: Trials, one: Trial) -> tuple[bool, float]:
    """The rank of a trial where what is given up does not count."""
    not_kept, _, figure = trials.rank(one)
    return not_kept, figure
