"""What a kind of workload is: the systems that can serve it, and a flow of requests through a world."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import simpy

from kvferry.backends.needs import Needs
from kvferry.backends.world import NO_INPUTS, Inputs, World
from kvferry.pipelines.policy_schema import Schema
from kvferry.pipelines.record import Assisted, Decoded, RequestRecord, Sessions
from kvferry.pipelines.tally import Totals
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import KvferryError
from kvferry.specs.scenario import Scenario

Process = Generator[simpy.Event, Any, None]
# Called with how much is done, of how much: requests, or tokens.
Progress = Callable[[int, int], None]


class Infeasible(KvferryError):
    """The scenario cannot be carried out on this device at all."""


class System(Protocol):
    """A named composition of policies."""

    @property
    def about(self) -> str: ...

    @property
    def paper(self) -> str:
        """Whose experiments it belongs to: systems of one paper are compared, unless others are named."""
        ...

    @property
    def codec(self) -> str | None:
        """What its stored contexts are encoded with; None: it has none."""
        ...

    @property
    def policy_schemas(self) -> Mapping[str, Schema]:
        """By key what ``with_policies`` reads, as JSON schemas, the parameters of all that a scenario can name instead
        included."""
        ...

    @property
    def policy_rules(self) -> Sequence[Schema]:
        """What a JSON schema can say of several keys together, where a scenario says nothing else of this system."""
        ...

    def with_policies(self, policies: Mapping[str, Any]) -> "System":
        """The same system with some of its policies replaced. Raises BadParameters, an InputError."""
        ...


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a flow leaves behind, finished or interrupted. ``notes``: for the user, what was done otherwise than the
    system's description says, and why."""

    requests: Sequence[RequestRecord]
    decoded: Decoded | None = None
    assisted: Assisted | None = None
    sessions: Sessions | None = None
    notes: tuple[str, ...] = ()


class Flow(Protocol):
    """A scenario's requests under one system. It is made before its world, whose needs it knows."""

    @property
    def needs(self) -> Needs: ...

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        """A SimPy process; `totals` gives what has added up by now.

        Raises OutOfMemory, Infeasible, LinkDown.
        """
        ...

    def left(self, world: World, end: Totals) -> Left: ...

    def kept(self) -> str:
        """For the user: how much is finished, of how much."""
        ...


class WorkloadKind(Protocol):
    """One kind of workload; the kinds by name are in kvferry.pipelines.workloads."""

    @property
    def systems(self) -> Mapping[str, System]: ...

    @property
    def headline(self) -> str:
        """The metric that this workload is about, by which systems are ranked and worlds compared."""
        ...

    def of_many_machines(self, scenario: Scenario) -> bool:
        """Returns whether its flows use a scenario's further machines; another kind of scenario may describe none."""
        ...

    def faults(self, scenario: Scenario, system: System) -> Iterator[Complaint]:
        """What the scenario's workload asks that the system does not do, or that does not fit the scenario."""
        ...

    def medium(self, scenario: Scenario) -> str:
        """For reports: what the KV comes over, the link or the storage."""
        ...

    def remark(self, scenario: Scenario) -> str | None:
        """What a comparison of the two worlds on this scenario does not prove; None where nothing has to be said."""
        ...

    def flow(self, scenario: Scenario, system: System, progress: Progress, inputs: Inputs = NO_INPUTS) -> Flow:
        """`inputs` are the ones that its world is given. Raises InputError for settings that do not fit."""
        ...
