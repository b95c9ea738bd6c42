"""Decoding as a stage of a turn: what it needs, what it leaves behind, and what it reports.

A stage reads what is left of a prompt behind KV that is there, and answers. One works on KV in memory, one on KV in
blocks that lie elsewhere: the flows of ``pipelines/decoding`` with a prompt of which a part is known.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import simpy

from kvferry.backends.needs import KvOnStorage
from kvferry.backends.world import OneTurn, World
from kvferry.layouts.cluster_layout import AnyLayout
from kvferry.layouts.layout import Layout
from kvferry.layouts.paged import PagedLayout
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import DecodeStep, OutputHead, PrefillLayer
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.budget import most_kv, workspace
from kvferry.pipelines.decoding.decode import DecodeRecord, LockStepDecode
from kvferry.pipelines.decoding.notes import DRAWN, draws_selections
from kvferry.pipelines.decoding.peak import Peak
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.quality import attention_mass_in
from kvferry.pipelines.decoding.systems import DecodeSystem
from kvferry.pipelines.decoding.warming import warms_up
from kvferry.pipelines.decoding.workload import half_of, middle_of, plan_for
from kvferry.pipelines.record import TurnAttention
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.policies.decode.attention_mass import AttentionMass
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.sizes import Known
from kvferry.policies.decode.spans import Spans
from kvferry.policies.ledger import Ledger
from kvferry.sessions.as_batch import as_batch
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.traces.request import Request
from kvferry.traces.turn import USUAL_BLOCK, Turn

Process = Generator[simpy.Event, Any, None]
# Prompts are alike in length up to this factor.
_ALIKE = 1.2


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a turn asks of a decode stage: `known` tokens of its prompt are there, the rest is to be read. Of them
    `stored` lie where the stage works, if that is not memory, and `near` of these have a copy in memory. `there`: how
    many of the prompt's first tokens the cloud has the KV of."""

    number: int
    prompt: int
    output: int
    known: int
    stored: Spans = Spans()
    near: Spans = Spans()
    there: int = 0


def whole_prompt(turn: Turn) -> Ask:
    """Returns what a turn asks where nothing of it is there."""
    return Ask(number=0, prompt=turn.prompt, output=turn.output, known=0)


@dataclass
class Answered:
    """What a stage reports: when each token was there, and how many came from a cloud."""

    token_times_s: list[float] = field(default_factory=list)
    came: int = 0
    attention: TurnAttention | None = None


def attends_to_all(ask: Ask) -> TurnAttention | None:
    """Returns what attention takes in for an answer all of whose KV is in memory: the prompt, and half of the answer in
    the mean."""
    tokens = ask.prompt + ask.output / 2
    return TurnAttention(tokens=tokens, of=tokens, mass=AttentionMass(1.0, 0.0)) if ask.output > 1 else None


class AnswerStage(Protocol):
    """``works_on``: where KV lies while it decodes, in which layout it is kept there."""

    works_on: Literal["memory", "flash"]

    @property
    def notes(self) -> Sequence[str]:
        """Returns what a reader of its figures should know."""
        ...

    def plan_of(self, ask: Ask) -> DecodePlan | None:
        """Returns how KV lies elsewhere while the turn decodes; None: all of it is in memory."""
        ...

    def leaves(self, turn: Turn) -> tuple[int, ...]:
        """Returns the blocks of prompt and answer whose KV is there in the end."""
        ...

    def flash_bytes(self, tokens: int) -> float:
        """Returns what the KV of this many tokens takes on flash, in this stage's layout."""
        ...

    def file_bytes(self, ask: Ask) -> float:
        """Returns what the turn takes of storage while it decodes, what of it was there before included."""
        ...

    def memory_bytes(self, ask: Ask) -> float:
        """Returns what the turn takes of memory besides copies of KV that are kept there; the most at any time.
        Raises InputError where no memory would do."""
        ...

    def run(self, world: World, ask: Ask, answered: Answered) -> Process:
        """A SimPy process. Raises OutOfMemory."""
        ...


def answer_stage(
    scenario: Scenario, name: str, system: DecodeSystem, longest: Turn, block: int = USUAL_BLOCK
) -> AnswerStage:
    """Returns the stage of a decoding system, as it is for the longest turn. `block`: tokens of a block that is kept
    between turns."""
    batch = as_batch(scenario, name, longest.prompt, longest.output)
    size = most_kv(batch, system.roles)
    if system.roles.stays_in_memory(size):
        return InMemory(scenario, name, system.roles)
    return InBlocks(scenario, name, system, block)


def whole_bytes(scenario: Scenario, tokens: int) -> float:
    """Returns what KV as it is in memory takes on flash: whole blocks of the device."""
    storage, n_bytes = scenario.device.storage, tokens * scenario.model.kv_bytes_per_token
    alignment = 1 if storage is None else int(storage.block_bytes)
    return float(-(-n_bytes // alignment) * alignment)


def leased(machine: Machine, sizes: dict[str, float], who: str) -> list[Lease]:
    """Holds memory by name. Raises OutOfMemory."""
    leases: list[Lease] = []
    for name, n_bytes in sizes.items():
        lease = machine.memory.reserve(n_bytes, name)
        if isinstance(lease, Refused):
            for one in leases:
                one.release()
            raise OutOfMemory(f"{who}: {lease}")
        leases.append(lease)
    return leases


def read_prompt(
    machine: Machine,
    model: ModelSpec,
    kernel: AttentionKernel,
    tokens: int,
    known: int,
    request: int,
    after: tuple[Ticket, ...] = (),
) -> Ticket:
    """Fires with the token that follows so many tokens of a prompt behind the `known` ones, all in memory."""
    for layer in range(model.layers):
        window = model.window_of(layer)
        op = PrefillLayer(1, tokens, layer, kernel=kernel, context_tokens=known, window_tokens=window)
        after = (machine.submit(op, after=after, request=request),)
    return machine.submit(OutputHead(1), after=after, request=request)


@dataclass(frozen=True)
class Sampling:
    """Which tokens of an answer are really decoded: the first, and some in the middle, whose second half tells the pace
    of the others."""

    output: int
    decoded: int | None

    @classmethod
    def of(cls, scenario: Scenario, world: World, ask: Ask) -> "Sampling":
        """What the scenario asks for; all, where none may be skipped or each leaves the device warmer."""
        may_skip = world.shortcuts.may_skip and not warms_up(scenario)
        return cls(ask.output, scenario.session.workload.decoded if may_skip else None)

    @property
    def steps(self) -> int:
        """Tokens that are decoded, the first included."""
        return self.output if self.decoded is None else min(self.output, self.decoded)

    @property
    def skipped(self) -> int:
        return middle_of(self.output - 1, self.steps - 1)


def _attention(plan: DecodePlan, record: DecodeRecord) -> TurnAttention | None:
    """Returns what attention took in over the tokens that were really decoded."""
    if not record.attentions:
        return None
    mass = attention_mass_in(plan, record.attended / record.attendable)
    return TurnAttention(
        tokens=record.attended / record.attentions, of=record.attendable / record.attentions, mass=mass
    )


class _Outline:
    """Notes what the device does in the second half of what is decoded, and lets the rest go on like it."""

    def __init__(self, world: World, sampling: Sampling, answered: Answered) -> None:
        self._world, self._sampling, self._answered = world, sampling, answered
        self._half_s: float | None = None

    def on_token(self) -> None:
        times, now_s, sampling = self._answered.token_times_s, self._world.machine.env.now, self._sampling
        times.append(now_s)
        if sampling.steps < sampling.output and len(times) == half_of(sampling.steps) + 1:
            self._half_s = now_s
            self._world.shortcuts.note()

    def rest(self) -> Process:
        """The tokens that are left, at the pace of the second half."""
        sampling, times = self._sampling, self._answered.token_times_s
        left = sampling.output - sampling.steps
        if self._half_s is None:
            return
        now_s = self._world.machine.env.now
        pace_s = (now_s - self._half_s) / (sampling.steps - 1 - half_of(sampling.steps))
        yield self._world.shortcuts.go_on(left * pace_s)
        times += [now_s + n * pace_s for n in range(1, left)] + [self._world.machine.env.now]


class InMemory:
    """All KV is in memory while a turn decodes, attended to by the system's kernel."""

    works_on: Literal["memory", "flash"] = "memory"
    notes: Sequence[str] = ()

    def __init__(self, scenario: Scenario, name: str, roles: Roles) -> None:
        self._scenario, self._name, self._roles, self.kernel = scenario, name, roles, roles.attention
        # Turns go on behind KV of which all layers keep all, as llama.cpp's --swa-full has it.
        self._peak = Peak(roles, scenario.model.without_window)

    def plan_of(self, ask: Ask) -> None:
        """All of it is."""

    def leaves(self, turn: Turn) -> tuple[int, ...]:
        return turn.leaves

    def flash_bytes(self, tokens: int) -> float:
        return whole_bytes(self._scenario, tokens)

    def file_bytes(self, ask: Ask) -> float:
        return 0.0

    def memory_bytes(self, ask: Ask) -> float:
        return sum(self.sizes(ask).values())

    def sizes(self, ask: Ask) -> dict[str, float]:
        """Returns what the turn takes of memory, by name."""
        batch = as_batch(self._scenario, self._name, ask.prompt, ask.output)
        whole = self._peak.batch_bytes(1, Request(0.0, ask.prompt, ask.output))
        near_bytes = ask.near.tokens * self._scenario.model.kv_bytes_per_token
        return {"kv": max(0.0, whole - near_bytes)} | Ledger(workspace(batch, self._roles)).at(0)

    def run(self, world: World, ask: Ask, answered: Answered) -> Process:
        machine, model, kernel = world.machine, self._scenario.model, self.kernel
        leases = leased(machine, self.sizes(ask), f"turn {ask.number + 1}")
        yield read_prompt(machine, model, kernel, ask.prompt - ask.known, ask.known, ask.number)
        sampling = Sampling.of(self._scenario, world, ask)
        outline = _Outline(world, sampling, answered)
        outline.on_token()
        for n in range(1, sampling.steps):
            step = DecodeStep(1, ask.prompt + sampling.skipped + n, kernel=kernel)
            yield machine.submit(step, request=ask.number)
            outline.on_token()
        yield from outline.rest()
        answered.attention = attends_to_all(ask)
        for lease in leases:
            lease.release()


class InBlocks:
    """KV lies in blocks elsewhere while a turn decodes, and what attention wants of it is brought: a lock-step batch of
    one. On flash groups of tokens lie in pages of the `block` tokens that are kept or not between turns, wherever these
    are whole ones. Clusters are made again in each turn: what is kept are tokens in their order, as of KV in memory."""

    def __init__(self, scenario: Scenario, name: str, system: DecodeSystem, block: int) -> None:
        self._scenario, self._name, self._system, self._block = scenario, name, system, block
        # The last turn's plan; and slots of reuse buffers, by the logarithm of a prompt's length.
        self._plans: dict[Ask, DecodePlan] = {}
        self._slots: dict[int, int] = {}
        self._away = system.roles.placement.away == "storage"
        stays = self._away and not system.roles.layout.clusters
        self.works_on: Literal["memory", "flash"] = "flash" if stays else "memory"
        self.notes: Sequence[str] = ()

    def plan_of(self, ask: Ask) -> DecodePlan:
        return self._plan(ask)

    def leaves(self, turn: Turn) -> tuple[int, ...]:
        """The answer's last token is not read."""
        return turn.leaves[: (turn.prompt + turn.output - 1) // self._block]

    def flash_bytes(self, tokens: int) -> float:
        if self.works_on == "memory":
            return whole_bytes(self._scenario, tokens)
        plan = self._some_plan
        rows = plan.model.layers * plan.choice.heads
        return rows * plan.layout.stride_bytes * tokens / plan.choice.group_tokens

    @property
    def _some_plan(self) -> DecodePlan:
        if not self._plans:
            longest = self._scenario.session.workload
            self._plan(Ask(number=0, prompt=longest.context + longest.question, output=longest.output, known=0))
        return next(iter(self._plans.values()))

    def _batch(self, ask: Ask) -> Scenario:
        return as_batch(self._scenario, self._name, ask.prompt, ask.output, turn=ask.number)

    def _plan(self, ask: Ask) -> DecodePlan:
        if ask not in self._plans:
            system = self._with_buffer(ask.prompt, ask.output)
            known = Known(tokens=ask.known)
            if self.works_on == "flash":
                known = replace(known, stored=ask.stored, near=ask.near)
            plan = plan_for(self._batch(ask), system)
            self._plans = {ask: replace(plan, known=known, layout=self._in_pages(plan))}
        return self._plans[ask]

    def _in_pages(self, plan: DecodePlan) -> AnyLayout:
        layout, group = plan.layout, plan.choice.group_tokens
        if self.works_on != "flash" or not isinstance(layout, Layout) or self._block % group:
            return layout
        return PagedLayout.of(layout, self._block // group)

    def _with_buffer(self, prompt: int, output: int) -> DecodeSystem:
        """The system with a reuse buffer of the size that pays, where it has to find that: once for prompts of like
        lengths, as finding it takes longer than a turn."""
        residency = self._system.roles.residency
        if not isinstance(residency, Reuse) or residency.slots is not None:
            return self._system
        alike = round(math.log(prompt, _ALIKE))
        if alike not in self._slots:
            # As the shortest of them has it: it fits all, as does what its output needs.
            shortest = math.ceil(_ALIKE ** (alike - 0.5))
            plan = plan_for(as_batch(self._scenario, self._name, shortest, output), self._system)
            self._slots[alike] = plan.staying.slots
        sized = replace(residency, slots=self._slots[alike])
        return replace(self._system, roles=replace(self._system.roles, residency=sized))

    def file_bytes(self, ask: Ask) -> float:
        return self._plan(ask).file_bytes if self._away else 0.0

    def memory_bytes(self, ask: Ask) -> float:
        plan = self._plan(ask)
        kv_bytes = max(plan.memory.ledger.n_bytes(tokens) for tokens in (plan.context, plan.most_tokens))
        return kv_bytes + sum(self._passing(ask, plan).values())

    def _passing(self, ask: Ask, plan: DecodePlan) -> dict[str, float]:
        """What is held besides until the prompt is read: what a load has brought and is still to be written."""
        there = ask.stored if self.works_on == "flash" else ask.near
        loaded = ask.known - there.tokens if self._away else 0
        sizes = {"kv: loaded": loaded * plan.model.kv_bytes_per_token} if loaded > 0 else {}
        return sizes | Ledger(workspace(self._batch(ask), plan.roles)).at(0)

    def run(self, world: World, ask: Ask, answered: Answered) -> Process:
        plan = self._plan(ask)
        need = KvOnStorage(sizes=plan, sequences=1, known=plan.known)
        own: OneTurn = world.content.turn(ask.number, self._batch(ask), need)
        sampling = Sampling.of(self._scenario, world, ask)
        outline = _Outline(world, sampling, answered)
        leases = leased(world.machine, self._passing(ask, plan), f"turn {ask.number + 1}")
        decode = LockStepDecode(own.machine, plan, lambda tokens: outline.on_token(), own.foresight, own.keys)
        yield from decode.run_parts([(sampling.skipped, sampling.steps - 1)])
        yield from outline.rest()
        answered.attention = _attention(plan, decode.record)
        if world.shortcuts.may_skip and own.keys is None and draws_selections(plan):
            self.notes = (DRAWN,)
        decode.now.release()
        for lease in leases:
            lease.release()
