"""The state of a batch under way: the machine, the plan, and what the roles and the present step hold."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Unpack

import numpy as np
import simpy

from kvferry.layouts.layout import Layout, PlacedBlocks
from kvferry.layouts.pieces import Reads
from kvferry.machine.machine import Asked, MemoryPool
from kvferry.machine.memory import GrowingLeases
from kvferry.machine.ops import Extents, Op
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.alike_layers import AlikeLayers
from kvferry.pipelines.decoding.layer_state import LayerState
from kvferry.pipelines.decoding.noted import Notes
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.kept_clusters import KeptClusters
from kvferry.policies.decode.residency import AllThere
from kvferry.policies.decode.rows import Lookup
from kvferry.policies.decode.slot_table import Resident
from kvferry.policies.decode.spans import gaps
from kvferry.policies.decode.upkeep import Ahead, Kept, Update
from kvferry.specs.tier import Tier


@dataclass
class DecodeRecord:
    """A record of a batch: times on the run's clock, KV blocks over the whole run."""

    prefill_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    blocks_wanted: int = 0
    blocks_reused: int = 0
    # By step, a pair of these (wanted, reused) for every token but the first.
    step_blocks: list[tuple[int, int]] = field(default_factory=list)
    # Entries that attention wanted and that came from outside the processor's memory in the same step.
    brought_entries: int = 0
    # Tokens that attention took in and the ones that there were, summed over steps and layers; and how many of these
    # sums there are.
    attended: float = 0.0
    attendable: float = 0.0
    attentions: int = 0
    # Reads of clusters: contiguous accesses, entries that these brought, and the most that one did.
    accesses: int = 0
    accessed: int = 0
    longest_access: int = 0
    # Entries of clusters that were read for nothing but to be split.
    cut_entries: int = 0
    # Blocks wanted and reused before the step that is under way.
    _before: tuple[int, int] = (0, 0)

    def token(self, now_s: float) -> None:
        """Every sequence has another token, and with it ends a step. The first comes from prefill, which is none."""
        if self.token_times_s:
            wanted, reused = self.blocks_wanted - self._before[0], self.blocks_reused - self._before[1]
            self.step_blocks.append((wanted, reused))
        self._before = self.blocks_wanted, self.blocks_reused
        self.token_times_s.append(now_s)

    def looked_up(self, found: Lookup, entries: int, layers: int = 1) -> None:
        """Counts the wanted blocks and those found in memory; `entries` are to be read. The same in each of `layers`
        layers."""
        self.blocks_wanted += layers * found.missing.size
        self.blocks_reused += layers * found.hits
        self.brought_entries += layers * entries

    def attends(self, tokens: float, stored: int, layers: int = 1) -> None:
        """Counts attention over `tokens` tokens of a sequence, which has `stored` and the new one; the same in each of
        `layers` layers. A selection of whole blocks may have room for more than there are."""
        self.attended += layers * min(tokens, stored + 1)
        self.attendable += layers * (stored + 1)
        self.attentions += layers

    def reads(self, of_layers: Iterable[Reads | None]) -> None:
        """Counts the contiguous accesses of layers' reads, where blocks are clusters; None: a layer reads nothing."""
        counted = [one.entries for one in of_layers if one is not None and one.entries is not None]
        entries = np.concatenate(counted) if counted else np.empty(0, np.int64)
        if len(entries):
            self.accesses += len(entries)
            self.accessed += int(entries.sum())
            self.longest_access = max(self.longest_access, int(entries.max()))


class StageMachine(Protocol):
    """The part of a machine that the stages of a batch use."""

    @property
    def env(self) -> simpy.Environment: ...

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket: ...

    def move(self, what: Extents, source: Tier, to: Tier, *, after: Iterable[Ticket] = ()) -> Ticket: ...

    def memory_of(self, tier: Tier) -> MemoryPool: ...


class DecodeState:
    """State that the stages of one batch share: the machine, the plan, and the roles' state so far."""

    def __init__(self, machine: StageMachine, plan: DecodePlan) -> None:
        self.machine: StageMachine = machine
        self.plan = plan
        # Notes of the step under way; None: nothing is noted.
        self.notes: Notes | None = None
        self.record = DecodeRecord()
        roles = plan.roles
        self.blocks: PlacedBlocks = plan.layout.start()
        self.kept: Kept = roles.upkeep.start(plan.context, plan.choice.group_tokens, self.blocks)
        self.tiers = plan.tiers
        # One for all layers where one choice serves them. It knows the slots of layers in the processor's memory too,
        # so that these are filled when a layer moves away.
        self._shared = self._resident("host") if roles.selector.for_all_layers else None
        self.layers = [LayerState(self._shared or self._resident(tier)) for tier in self.tiers]
        self.alike = AlikeLayers(self.layers)
        self.step = self._skipped = 0
        # Whether the step under way is the last one, and what that leaves to be written behind which ticket.
        self.last = False
        self.unwritten: tuple[Update, Ticket] | None = None
        # Clusters that the first layer is likely to want, which come beside the output head before the step.
        self.coming: Ticket | None = None
        self._done: Ticket | None = None
        self._held = GrowingLeases(machine.memory_of)
        # The last look-up that was read, its layer, and the reads.
        self.read_last: tuple[Lookup, int, Reads] | None = None

    def away(self, layer: int) -> bool:
        """A layer's KV lies outside the processor's memory."""
        return self.tiers[layer] != "device"

    @property
    def tokens_stored(self) -> int:
        """Returns the tokens of a sequence: its context and all that were decoded since."""
        return self.plan.context + self._skipped + self.step

    def skip(self, tokens: int, keys: Ahead | None) -> None:
        """Adds this many tokens to every sequence, as if they were decoded; reuse buffers stay empty. `keys` advance
        with them; where blocks are clusters, they say which cluster each token joins."""
        if not tokens:
            return
        before, self._skipped, self.coming = self.tokens_stored, self._skipped + tokens, None
        self.kept.skip(tokens, before, keys, self.plan.roles.selector.wanted_tokens)
        # Only what is really written counts.
        self.blocks.count_anew()

    def resume(self, kept: KeptClusters, tokens: int) -> None:
        """Goes on as if these had been skipped, from the clusters that another run has come to."""
        self.kept, self.blocks = kept, kept.places
        self._skipped, self.coming = self._skipped + tokens, None

    def until_move(self, tokens: int) -> int:
        """Returns after how many of the next `tokens` tokens the placement has a layer move; `tokens` where none does.
        A layer that has left does not come back."""
        stored = self.tokens_stored
        return bisect_left(range(tokens), True, key=lambda n: self.plan.memory.tiers_at(stored + n) != self.tiers)

    @property
    def moves_now(self) -> bool:
        """Returns whether ``place`` will have a layer move."""
        return self.plan.memory.tiers_at(self.tokens_stored) != self.tiers

    def place(self) -> list[Ticket]:
        """Hold memory for the KV there is, and begin to move what its placement has move now: the tickets of that.
        Raises OutOfMemory."""
        tokens = self.tokens_stored
        before, self.tiers = self.tiers, self.plan.memory.tiers_at(tokens)
        moving = list[Ticket]()
        for layer, (source, to) in enumerate(zip(before, self.tiers, strict=True)):
            if source != to:
                self.layers[layer].arriving = (self.machine.move(self.whole(layer), source, to),)
                moving += self.layers[layer].arriving
                self.layers[layer].resident = self._shared or self._resident(to)
                self.coming = None
        memories: tuple[Tier, ...] = ("device", "host")
        self._held.hold({tier: self.plan.memory.ledger.at(tokens, tier) for tier in memories})
        return moving

    def whole(self, layer: int) -> Extents:
        """Returns all KV blocks of a layer, to be placed somewhere."""
        pieces = self.blocks.whole(layer)
        ranges = self.blocks.stretches(layer, self.kept.stored(layer)) if pieces is None else pieces.ranges
        return Extents(*ranges, (layer,), pieces)

    def new(self, layer: int) -> Extents | None:
        """Returns the KV blocks of a layer's context that do not lie yet where they are to lie; None: all do."""
        known, plan = self.plan.known, self.plan
        whole = self.whole(layer)
        # Statements on clusters are on all of them: they are made again.
        if known is None or not isinstance(self.blocks, Layout):
            return whole
        lacking = gaps(plan.blocks_of(known.stored), self.kept.stored(layer))
        return Extents(*self.blocks.parts(layer, lacking), (layer,)) if lacking else None

    def release(self) -> None:
        """Gives back all memory that is held for the KV."""
        self._held.release()

    def here(self, layer: int) -> Extents | None:
        """Returns where a layer's wanted KV blocks lie in the processor's own memory; None: the layer is away."""
        if self.away(layer):
            return None
        reads = self.layers[layer].reads
        return self.whole(layer) if reads is None else Extents(*reads.ranges)

    def there(self, layer: int, after: Sequence[Ticket]) -> Ticket:
        """Fires when a layer's KV is in the processor's memory, where its placement may have begun to move it in this
        step: attention, which comes after it, is behind `after` in the processor's own queue."""
        moved = self.layers[layer].arriving
        return moved[0] if moved else after[0] if after else self.done()

    def awaits(self, ticket: Ticket) -> None:
        """Has it noted that what comes next is handed over once this has ended."""
        if self.notes is not None:
            self.notes.awaited(ticket)

    def done(self) -> Ticket:
        """Returns a ticket of work that was done before."""
        if self._done is None:
            self._done, now_s = Ticket(self.machine.env), self.machine.env.now
            self._done.settle(None, now_s, now_s)
        return self._done

    def _resident(self, tier: Tier) -> Resident:
        plan = self.plan
        if tier == "device":
            return AllThere()
        sizes = plan.rows, plan.layout.blocks, plan.staying.slots, plan.staying.tokens, plan.choice.group_tokens
        return plan.roles.residency.start(*sizes)
