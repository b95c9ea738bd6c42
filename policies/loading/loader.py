"""The interface of a loader, which decides what a path does next whenever that path has room."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What a loader may know: the planned rates, and the rates observed since.

    Rates are this load's share: other loads under way have as much. Bytes arrive no faster than the device decodes
    them. `goodput_bytes_per_s` and `compute_speed` (nominal over actual duration) are observed over the last window;
    None before the first observation. `planned_speed` is the compute speed expected at the start. The processor begins
    no op before `processor_from_s`. `planned_read_bytes_per_s` is the rate of local storage, for units that lie there.
    """

    now_s: float
    planned_bytes_per_s: float
    rtt_s: float
    goodput_bytes_per_s: float | None = None
    compute_speed: float | None = None
    planned_speed: float = 1.0
    processor_from_s: float = 0.0
    planned_read_bytes_per_s: float = 0.0

    @property
    def starting_s(self) -> float:
        """How long the processor still takes to start."""
        return max(0.0, self.processor_from_s - self.now_s)

    def planned(self, problem: LoadProblem) -> LoadProblem:
        """The problem as it is planned: with what the processor's start takes, at the planned speed."""
        return replace(problem, start_s=self.starting_s * self.planned_speed) if self.starting_s else problem

    @property
    def planned_exchange(self) -> float:
        """Bytes expected to arrive while the processor does one nominal second of work: what plans depend on."""
        return self.planned_bytes_per_s / self.planned_speed

    @property
    def seen_speed(self) -> float:
        """The observed compute speed; before the first observation, the planned one."""
        return self.compute_speed or self.planned_speed

    @property
    def seen_bytes_per_s(self) -> float:
        """The observed goodput; before the first observation, and after a window without a byte, the planned rate."""
        return self.goodput_bytes_per_s or self.planned_bytes_per_s


@dataclass(frozen=True, slots=True)
class LinkWindow:
    """How many bytes a loader keeps on the link. Too few, and the link idles; what is there cannot be changed any more.

    They are what the link carries in a round trip and `ahead_s`, this many `times`, at the observed rate; with
    `at_least_planned`, at the planned rate where that is faster.
    """

    times: float = 1.0
    at_least_planned: bool = False
    ahead_s: float = 0.008

    def n_bytes(self, facts: LoadFacts) -> float:
        rate = facts.seen_bytes_per_s
        if self.at_least_planned:
            rate = max(rate, facts.planned_bytes_per_s)
        return self.times * rate * (facts.rtt_s + self.ahead_s)


# For loaders that lose nothing by handing over early: static ones, which never change their mind, and the ones that
# race. On every second recorded link (studies/regret.py --half chosen) its worst loads were the best, at 4 and at 50
# ms.
WIDE = LinkWindow(times=8, at_least_planned=True)


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute these units, in this order; each must be computable once those before it are done."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """Fetch these units in one transfer, at an encoding level."""

    units: tuple[int, ...]
    level: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """Read these units from local storage, in this order."""

    units: tuple[int, ...]


class Loader(Protocol):
    """Decides, and carries nothing out. None: nothing to do until a unit arrives or a window passes."""

    # The pipeline asks for streams while less than this is on the link; it looks here whenever facts are new.
    window: LinkWindow

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        """Called once, before anything else, with estimated costs: make the plan here."""
        ...

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None: ...

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None: ...


@runtime_checkable
class ReadingLoader(Loader, Protocol):
    """A loader that also says what local storage reads next, of the units that lie there."""

    def next_read(self, progress: LoadProgress, facts: LoadFacts) -> Read | None: ...


Serving = Literal["fair", "one-at-a-time"]
# Whether the next load may begin while this many are under way.
Discipline = Callable[[int], bool]


# Fair: every load begins at once, and all share both paths. One at a time: the others wait, first come first served.
DISCIPLINES: dict[Serving, Discipline] = {"fair": lambda loads: True, "one-at-a-time": lambda loads: loads == 0}
