"""Where a scenario takes place: machines, what they need to be given, and what can be recorded of a run.

One protocol, one modelled world (backends/sim/world.py), one real one (backends/live/world.py). Workloads differ in
what they need and in their inputs, never in their worlds.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import simpy

from kvferry.backends.needs import KvOnStorage, Need, Needs, NoKv
from kvferry.machine.machine import Machine, Refused
from kvferry.machine.span import Span, Tell
from kvferry.machine.warmth import Warmth
from kvferry.policies.decode.upkeep import Ahead
from kvferry.sim.foresight import Foresight
from kvferry.specs.errors import InputError, OutOfMemory
from kvferry.specs.link import LinkSpec
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario
from kvferry.traces.cluster_answers import RecordedClusters
from kvferry.traces.rate import RateTrace
from kvferry.traces.request import Request
from kvferry.traces.selections import SelectionStream
from kvferry.traces.stored import StoredContext

# Called with what is being made ready, where that takes a while.
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What varies from run to run by content: recorded in one world, given to another.

    None: a modelled world generates it from the scenario's seed, or reads the file that the scenario names.
    ``stored``: sizes and attention blocks of each request's context. ``selections``: the KV blocks that each step
    selects, sequence after sequence. ``clusters``: what keys said of their clusters. ``arrivals``: when
    requests came, and their lengths; for the flow, where they come whether or not those before are done.
    ``found``: by turn, the blocks that an earlier run had left on storage, each with its place there; ``in_cloud``: the
    ones that it had left in the cloud; ``turns``: by turn, what was chosen in it.
    ``from_the_first``: the run that recorded them decoded every token from the first on.
    """

    stored: tuple[StoredContext, ...] | None = None
    selections: SelectionStream | None = None
    clusters: RecordedClusters | None = None
    arrivals: tuple[Request, ...] | None = None
    found: Mapping[int, Mapping[int, int]] | None = None
    in_cloud: Mapping[int, Sequence[int]] | None = None
    turns: Mapping[int, "Inputs"] | None = None
    from_the_first: bool = False


NO_INPUTS = Inputs()


class Described(NamedTuple):
    """A machine that a world opens: what it needs, the scenario with it in the place of the device, and its link."""

    name: str
    need: Need
    scenario: Scenario
    link: LinkSpec | None


def described(scenario: Scenario, needs: Needs) -> list[Described]:
    """The device, whether it needs anything or not, and the other machines that a flow needs. Raises InputError for one
    that the scenario does not have, or that lacks a link to fetch over."""
    found = []
    for name, need in {DEVICE: NoKv(), **needs}.items():
        link = scenario.link_of(name)
        if need.fetches and link is None:
            raise InputError(f"machines.{name.partition('.')[0]}.link: is missing; {name} fetches contexts over it")
        found.append(Described(name, need, scenario.seen_by(name), link))
    return found


def tell_of(name: str, tell: Tell) -> Tell:
    """Reports spans of a machine: resources of all but the device bear its name, as in ``cloud/gpu``."""
    if name == DEVICE:
        return tell

    # The full name by resource: the same few come again and again.
    names: dict[str, str] = {}

    def told(span: Span) -> None:
        resource, label, start_s, end_s, n_bytes, request = span
        full = names.get(resource)
        if full is None:
            full = names[resource] = f"{name}/{resource}"
        tell(Span(full, label, start_s, end_s, n_bytes, request))

    return told


class Crowd(Protocol):
    """Devices that are all as the scenario's own."""

    @property
    def devices(self) -> Sequence[Machine]:
        """Machines of devices that have had something to do, the scenario's own first. One machine may have been that
        of several devices, one after the other."""
        ...

    def device(self, n: int, link: LinkSpec | None = None) -> Machine:
        """Returns the machine of the n-th device, the first being the scenario's own, for as long as it has something
        to do: until ``leave``. `link`: its own way to the network; None: the scenario's. In a modelled world the spans
        of all but the first are kept together, as of ``devices``, and each begins its link's trace at a time of its
        own. Raises InputError in a world that has no such device."""
        ...

    def leave(self, n: int) -> None:
        """The n-th device has nothing to do for now, and no conversation is under way."""
        ...

    @property
    def private(self) -> bool:
        """Whether what devices are asked is a user's own, which leaves no device unless the scenario says so."""
        ...

    def stays_j(self) -> dict[str, float]:
        """Returns the energy by component that devices have used between ``device`` and ``leave``, all together; empty
        where nothing meters it."""
        ...


@dataclass(frozen=True)
class OneTurn:
    """The device as one turn of a conversation decodes on it: what its ops that choose are answered is the turn's own.
    ``foresight`` and ``keys``: as Shortcuts has them."""

    machine: Machine
    foresight: Foresight | None
    keys: Ahead | None


class Shortcuts(Protocol):
    """What a modelled world lets a flow know or leave out; a real one has none."""

    @property
    def foresight(self) -> Foresight | None:
        """What the device's decoding steps can be calculated from, without events; None where they cannot."""
        ...

    @property
    def keys(self) -> Ahead | None:
        """The device's keys, where the world generates them; None: it has none, or they come as they are decoded."""
        ...

    @property
    def may_skip(self) -> bool:
        """Whether a flow may take tokens as decoded that were not. Not where their KV has to be real, or where a
        recorded run is replayed."""
        ...

    def note(self) -> None:
        """From now on the device, which needs KvOfTurns, notes what it does for ``go_on``. Where `may_skip` says so."""
        ...

    def go_on(self, seconds: float) -> simpy.Event:
        """Fires after `seconds` more, in which the device goes on with what it has noted, as if it did so much more of
        the same. Nothing else happens on it meanwhile."""
        ...


class KvBetweenTurns(Protocol):
    """The KV of conversations on a device that needs KvOfTurns, by ids of blocks of tokens. What moves between memory
    and storage says its blocks (`Extents`)."""

    def begin(self, turn: int, read: Sequence[int], pages: Sequence[int] = ()) -> None:
        """A turn begins, for which these blocks are read from storage. `pages`: where it decodes on storage, the place
        of each block of its tokens."""
        ...

    def found(self, turn: int) -> Mapping[int, int]:
        """Returns, of the blocks of a turn whose tokens are known, those that an earlier run has left on storage and
        this one has not written over, each with its place there."""
        ...

    def in_cloud(self, turn: int) -> Collection[int]:
        """Returns, of the blocks of a turn whose tokens are known, those that an earlier run has left in the cloud."""
        ...

    def send(self, blocks: Sequence[int]) -> Sequence[simpy.Event]:
        """The KV of these blocks, which a turn has left, goes to the cloud. Returns for each what fires with None once
        it is there, or with why it cannot be; nothing where it is there at once."""
        ...

    def hold(self, blocks: Collection[int]) -> None:
        """The KV of these blocks stays in memory until the next turn, and no other: a turn has ended, or room is
        made."""
        ...

    def stays(self, pages: Mapping[int, int]) -> Sequence[simpy.Event]:
        """A turn that decodes on storage has ended, and these blocks stay there, each in its place. Returns what is to
        be waited for before the next one begins."""
        ...


class Content(Protocol):
    """What a run works on, given or recorded."""

    @property
    def between_turns(self) -> KvBetweenTurns: ...

    @property
    def arrived(self) -> list[Request]:
        """The requests that have arrived so far, each with the time at which it did. The flow appends them."""
        ...

    def stored(self, sequence: int) -> StoredContext:
        """Returns the context of a request in the cloud, where the device needs ContextsInCloud."""
        ...

    def turn(self, number: int, scenario: Scenario, need: KvOnStorage) -> OneTurn:
        """Returns the device for one turn, where it needs KvOfTurns. `scenario`: the turn as a batch of one that
        decodes. Raises InputError."""
        ...

    def inputs(self) -> Inputs:
        """Returns the inputs that the run has been given or has recorded so far, for another world to replay."""
        ...


class Meters(Protocol):
    """What is measured beside spans."""

    def energy_j(self, until_s: float, machine: str = DEVICE) -> dict[str, float]:
        """Returns the energy that a machine has used since the beginning, by component; empty where nothing meters
        it."""
        ...

    def storage_utilisation(self, until_s: float) -> float:
        """Returns the share of the time in which the device's storage was at work."""
        ...

    def warmth(self, until_s: float) -> Warmth | None:
        """Returns how warm the device became until the end of its run; None where its heat is not modelled."""
        ...

    def measured(self) -> dict[str, Any]:
        """Returns what else was observed and need not be the same in two equal runs."""
        ...


class Rates(Protocol):
    """What others leave of the device's link and processor."""

    @property
    def link(self) -> RateTrace:
        """Bytes per second over the run."""
        ...

    @property
    def available(self) -> RateTrace:
        """The share of the main processor that others leave."""
        ...


class World(Protocol):
    """Everything that a run touches. The clock of its machines begins at 0, as do the link's rates."""

    @property
    def machines(self) -> Mapping[str, Machine]:
        """Machines by instance name: DEVICE first, then the ones that the flow's needs name. All share one environment,
        and each can open channels to the others."""
        ...

    @property
    def machine(self) -> Machine:
        """The scenario's device."""
        ...

    @property
    def weights_refused(self) -> Refused | OutOfMemory | None:
        """Why the weights of some machine, or what else is there before a run, do not fit its memory, or None. Nothing
        runs after a refusal."""
        ...

    @property
    def crowd(self) -> Crowd: ...
    @property
    def rates(self) -> Rates: ...
    @property
    def shortcuts(self) -> Shortcuts: ...
    @property
    def content(self) -> Content: ...
    @property
    def meters(self) -> Meters: ...


class WholeWorld:
    """Base of a World that is all its parts by itself."""

    @property
    def rates(self) -> Self:
        return self

    @property
    def shortcuts(self) -> Self:
        return self

    @property
    def content(self) -> Self:
        return self

    @property
    def meters(self) -> Self:
        return self

    def warmth(self, until_s: float) -> Warmth | None:
        return None


class ModelledKv:
    """A KvBetweenTurns without KV: earlier runs have left on storage and in the cloud what a recorded one found
    there."""

    def __init__(self, recorded: Inputs = NO_INPUTS) -> None:
        self._earlier, self._in_cloud = recorded.found or {}, recorded.in_cloud or {}

    def begin(self, turn: int, read: Sequence[int], pages: Sequence[int] = ()) -> None:
        """Reads take their time on the machine."""

    def found(self, turn: int) -> Mapping[int, int]:
        return self._earlier.get(turn, {})

    def in_cloud(self, turn: int) -> Collection[int]:
        return self._in_cloud.get(turn, ())

    def send(self, blocks: Sequence[int]) -> Sequence[simpy.Event]:
        return ()

    def hold(self, blocks: Collection[int]) -> None:
        """Holds nothing."""

    def stays(self, pages: Mapping[int, int]) -> Sequence[simpy.Event]:
        return ()


class OpenWorld(Protocol):
    def __call__(
        self, scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say
    ) -> AbstractContextManager[World]:
        """The scenario's world for as long as the block lasts. Raises InputError."""
        ...
