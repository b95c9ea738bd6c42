"""What each stage of decoding is: how a pipeline begins it, and what a planner prices it at. One is the other's op."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from kvferry.machine.machine import Machine
from kvferry.machine.ops import (
    Attended,
    Bookkeep,
    DecodeAttention,
    Decompose,
    Extents,
    FeedForward,
    Op,
    OutputHead,
    PrefillLayer,
    Rebuilt,
    Reconstruct,
    Select,
    Selection,
)
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.residency import Resident
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.upkeep import Kept

# What works at a stage: the processor, or storage and what lies between it and the processor's memory.
Queue = Literal["processor", "mover"]
After = Sequence[Ticket]


@dataclass
class DecodeRecord:
    """What happened: times on the run's clock, KV blocks over the whole run."""

    prefill_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    units_wanted: int = 0
    units_reused: int = 0


class Pass:
    """What the stages of one batch share: the machine, the plan, and the roles' state so far."""

    def __init__(self, machine: Machine, plan: DecodePlan) -> None:
        self.machine, self.plan, self.layout = machine, plan, plan.layout
        self.record = DecodeRecord()
        layers, roles = plan.shape.layers, plan.roles
        self.kept: Kept = roles.upkeep.start(plan.context, plan.group_tokens, plan.layout)
        self.residents: list[Resident] = [
            roles.residency.start(plan.rows, plan.layout.units, plan.slots) for _ in range(layers)
        ]
        self.step = 0
        # By layer, of the present step: the machine's choice, where its blocks are (None: all are on their way), and
        # how many tokens of a sequence they hold.
        self.chosen: list[Ticket | None] = [None] * layers
        self.found: list[Lookup | None] = [None] * layers
        self.tokens = [0] * layers


class Prices(Protocol):
    """A plan's mean step, for planners."""

    @property
    def plan(self) -> DecodePlan: ...

    @property
    def move_s(self) -> float:
        """Of moving what one layer of the batch lacks."""
        ...

    @property
    def op_s(self) -> Callable[[Op], float]: ...


class Kind(Protocol):
    queue: Queue

    def begin(self, now: Pass, layer: int, after: After) -> Ticket: ...


class PricedKind(Kind, Protocol):
    def seconds(self, prices: Prices) -> float: ...


@runtime_checkable
class BlockOp(Protocol):
    """A stage that is an op of a Transformer block while decoding; its spans carry the label."""

    label: str


# --- choosing and moving -----------------------------------------------------------------------------------------


class ChooseBlocks:
    """The machine scores KV blocks and answers with those that attention wants."""

    queue: Queue = "processor"
    label = Select.__name__

    @staticmethod
    def op(plan: DecodePlan, stored: int, step: int, layer: int) -> Select:
        assert plan.index is not None
        ask = plan.roles.selector.ask(plan.index, stored)
        return Select(plan.sequences, ask.blocks, ask.k, step, layer, heads=ask.heads, keys=ask.vectors, rank=ask.rank)

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        # What was written while decoding can be chosen, too.
        op = self.op(now.plan, now.kept.stored(layer), now.step, layer)
        now.chosen[layer] = ticket = now.machine.submit(op, after=after)
        return ticket

    def seconds(self, prices: Prices) -> float:
        return prices.op_s(self.op(prices.plan, prices.plan.units, 0, 0))


class LookUp:
    """The host finds what is in memory already, and where the rest goes."""

    queue: Queue = "processor"
    label = Bookkeep.__name__

    @staticmethod
    def op(plan: DecodePlan) -> Bookkeep:
        return Bookkeep(plan.sequences * plan.units_per_selection, plan.slots)

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        chosen = now.chosen[layer]
        assert chosen is not None
        selection: Selection = chosen.value
        wanted = BlockRows(selection.ids.reshape(now.plan.rows, -1))
        now.found[layer] = found = now.residents[layer].look_up(wanted)
        now.record.units_wanted += wanted.ids.size
        now.record.units_reused += found.hits
        now.tokens[layer] = wanted.widest * now.plan.group_tokens
        return now.machine.submit(self.op(now.plan), after=after)

    def seconds(self, prices: Prices) -> float:
        return prices.op_s(self.op(prices.plan))


class BringMissing:
    """Chosen blocks that are not there yet move to the processor's memory."""

    queue: Queue = "mover"

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        found = now.found[layer]
        assert found is not None
        return now.machine.read(Extents(*now.layout.ranges(layer, *found.to_move)), after=after)

    def seconds(self, prices: Prices) -> float:
        return prices.move_s


class BringAll:
    """All blocks of a layer move to the processor's memory."""

    queue: Queue = "mover"

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        stored = now.kept.stored(layer)
        now.tokens[layer] = stored * now.plan.group_tokens
        return now.machine.read(Extents(*now.layout.stretches(layer, stored)), after=after)

    def seconds(self, prices: Prices) -> float:
        return prices.move_s


class RebuildKeys:
    """Keys of the chosen tokens are rebuilt while their values move (ShadowKV's second stream)."""

    queue: Queue = "processor"
    label = Reconstruct.__name__

    @staticmethod
    def op(plan: DecodePlan, tokens: float, kv: Rebuilt | None = None) -> Reconstruct:
        assert plan.rebuilt_rank is not None
        return Reconstruct(plan.sequences, tokens, plan.rebuilt_rank, kv)

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        found = now.found[layer]
        kv = Rebuilt(layer, None if found is None else found.wanted.ids)
        return now.machine.submit(self.op(now.plan, now.tokens[layer], kv), after=after)

    def seconds(self, prices: Prices) -> float:
        return prices.op_s(self.op(prices.plan, prices.plan.brought_tokens))


# --- computing ---------------------------------------------------------------------------------------------------


class Attend:
    """Attention over what was brought, the newest tokens in memory, and the new one itself."""

    queue: Queue = "processor"
    label = DecodeAttention.__name__

    @staticmethod
    def op(plan: DecodePlan, tokens: float, kv: Attended | None = None) -> DecodeAttention:
        # A selection is gathered from where its blocks lie.
        return DecodeAttention(plan.sequences, tokens, plan.selected is not None, kv)

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        found, recent = now.found[layer], now.kept.recent(layer)
        missing, slots = (None, None) if found is None else (found.missing, found.slots)
        op = self.op(now.plan, now.tokens[layer] + recent + 1, Attended(layer, missing, slots, recent))
        return now.machine.submit(op, after=after)

    def seconds(self, prices: Prices) -> float:
        plan = prices.plan
        recent = plan.roles.upkeep.mean_recent(plan.group_tokens, plan.output)
        return prices.op_s(self.op(plan, plan.brought_tokens + recent + 1))


class PassOn:
    """The rest of the layer."""

    queue: Queue = "processor"
    label = FeedForward.__name__

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None) -> FeedForward:
        return FeedForward(plan.sequences, layer)

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, layer), after=after)

    def seconds(self, prices: Prices) -> float:
        return prices.op_s(self.op(prices.plan))


class NextToken:
    """The next token of every sequence; what its KV completes goes to storage behind the reads."""

    queue: Queue = "processor"

    @staticmethod
    def op(plan: DecodePlan, complete: int | None = None) -> OutputHead:
        return OutputHead(plan.sequences, complete)

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        update = now.kept.append()
        ticket = now.machine.submit(self.op(now.plan, update.complete if update else None), after=after)
        if update is not None:
            now.machine.write(Extents(*update.write), after=(ticket,))
        return ticket

    def seconds(self, prices: Prices) -> float:
        return prices.op_s(self.op(prices.plan))


# --- prefill -----------------------------------------------------------------------------------------------------


class PrefillOne:
    """One layer over the whole context."""

    queue: Queue = "processor"

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        return now.machine.submit(PrefillLayer(now.plan.sequences, now.plan.context, layer), after=after)


class WriteOut:
    """The whole blocks of a layer's context."""

    queue: Queue = "mover"

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        return now.machine.write(Extents(*now.layout.stretches(layer, now.kept.stored(layer))), after=after)


class DecomposeKeys:
    """A layer's keys, so that they can be rebuilt."""

    queue: Queue = "processor"

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        return now.machine.submit(Decompose(now.plan.sequences, now.plan.context, layer), after=after)


class FirstToken:
    """The token that prefill ends with."""

    queue: Queue = "processor"

    def begin(self, now: Pass, layer: int, after: After) -> Ticket:
        return now.machine.submit(NextToken.op(now.plan), after=after)


PREFILL: dict[str, Kind] = {
    "prefill": PrefillOne(),
    "write_out": WriteOut(),
    "decompose": DecomposeKeys(),
    "first_token": FirstToken(),
}
DECODING: dict[str, PricedKind] = {
    "select": ChooseBlocks(),
    "look_up": LookUp(),
    "bring": BringMissing(),
    "bring_all": BringAll(),
    "rebuild": RebuildKeys(),
    "attend": Attend(),
    "feed_forward": PassOn(),
    "next_token": NextToken(),
}
KINDS: dict[str, Kind] = {**PREFILL, **DECODING}
# What the processor's spans of a block are called while decoding.
BLOCK_LABELS = tuple(kind.label for kind in DECODING.values() if isinstance(kind, BlockOp))
