"""The state of a batch under way: the machine, the plan, and what the roles and the present step hold."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Unpack, cast

import numpy as np
import simpy

from kvferry.layouts.layout import Layout, PlacedBlocks
from kvferry.layouts.pieces import Reads
from kvferry.machine.machine import Asked, MemoryPool
from kvferry.machine.memory import GrowingLeases
from kvferry.machine.ops import Extents, Op
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.noted import Notes
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.caches_of_layers import CachesOfLayers
from kvferry.policies.decode.cluster_cache import ClusterCache
from kvferry.policies.decode.kept_clusters import Maintenance
from kvferry.policies.decode.residency import AllThere
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.slot_table import Resident
from kvferry.policies.decode.spans import gaps
from kvferry.policies.decode.upkeep import Ahead, Kept, Update
from kvferry.specs.tier import Tier

# Tells what an op that is handed over later in a step will be answered.
Foretold = Callable[[Op], Ticket]


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


@dataclass(slots=True)
class LayerState:
    """The present step's state of a layer, and what is kept of it."""

    resident: Resident
    # Moves of its KV to another tier.
    arriving: tuple[Ticket, ...] = ()
    # The machine's choice, where its blocks are (None: all are on their way), and how they are read.
    chosen: Ticket | None = None
    found: Lookup | None = None
    reads: Reads | None = None
    # Tokens of a sequence that they hold, and each of them (None: all are full); entries of them that come from
    # elsewhere.
    tokens: int = 0
    block_tokens: np.ndarray | None = None
    brought: int = 0
    # Reads of blocks that it is likely to want, where these are swapped.
    swapped: Reads | None = None
    # The clusters of its context, and the one that each new key belongs to.
    clustered: Ticket | None = None
    assigned: Ticket | None = None
    # Maintenance of its clusters in this step, the work on them, and reads of those that no query has brought.
    asked: Maintenance = ()
    maintained: Ticket | None = None
    cut: Reads | None = None


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
        residents = [self._shared or self._resident(tier) for tier in self.tiers]
        self.layers = [LayerState(one) for one in residents]
        # By layer, the ones that are answered alike and have the same blocks: what a step finds in the first of them
        # goes for all.
        self._alike = [[n] for n in range(len(residents))]
        # Layers told apart whose caches are swapped, with these, and answers to ops that come later in a step.
        self._together: tuple[list[int], CachesOfLayers] | None = None
        self._foretold: Foretold | None = None
        self.step = self._skipped = 0
        # Whether the step under way is the last one, and what that leaves to be written behind which ticket.
        self.last = False
        self.unwritten: tuple[Update, Ticket] | None = None
        # Clusters that the first layer is likely to want, which come beside the output head before the step.
        self.coming: Ticket | None = None
        self._done: Ticket | None = None
        self._held = GrowingLeases(machine.memory_of)
        # The last look-up that was read, its layer, and the reads.
        self._read_last: tuple[Lookup, int, Reads] | None = None

    def tell_apart(self, kinds: int, foretold: Foretold) -> None:
        """Only the first layers are told apart from now on, and those behind are each like one of them, in turn: of
        `kinds` kinds, and the very first by itself where something of it comes beside the output head."""
        self._foretold = foretold
        first = int(self.plan.roles.residency.swaps)
        self._alike = [[] for _ in self.layers]
        for n in range(len(self.layers)):
            self._alike[n if n < first else first + (n - first) % kinds].append(n)
        apart = [layer for layer in range(first, len(self.layers)) if self._alike[layer]]
        caches = [self.layers[layer].resident for layer in apart]
        if caches and self.plan.roles.residency.swaps and all(isinstance(cache, ClusterCache) for cache in caches):
            self._together = apart, CachesOfLayers(cast(list[ClusterCache], caches))

    def alike(self, layer: int) -> Sequence[int]:
        """Returns this layer and the ones behind that are like it; none for one that is like an earlier one."""
        return self._alike[layer]

    def decided_with(self, layer: int) -> Sequence[int]:
        """Returns the layers told apart whose blocks are chosen, looked up and maintained with this one's, itself
        first; none where that was done with an earlier one's."""
        if self._together is None or layer not in self._together[0]:
            return (layer,)
        layers = self._together[0]
        return layers if layer == layers[0] else ()

    def foretold(self, op: Op) -> Ticket:
        """Returns what an op of a layer that is decided with an earlier one will be answered."""
        assert self._foretold is not None
        return self._foretold(op)

    def look_up(self, layers: Sequence[int], wanted: Sequence[tuple[BlockRows, np.ndarray | None]]) -> list[Lookup]:
        """Finds the wanted blocks of layers that are decided together, with the tokens in each."""
        if len(layers) == 1 or self._together is None:
            return [self.layers[n].resident.look_up(*of) for n, of in zip(layers, wanted, strict=True)]
        return self._together[1].look_up_each([(blocks, tokens) for blocks, tokens in wanted if tokens is not None])

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

    def to_read(self, layer: int) -> Reads:
        """Returns how a layer's blocks are read: the blocks missing from their slots, or all wanted ones where nothing
        is kept."""
        found = self.layers[layer].found
        assert found is not None
        if self._read_last is not None and self._read_last[0] is found and isinstance(self.blocks, Layout):
            # One choice for all layers, at the same places in each.
            _, like, of = self._read_last
            self.layers[layer].reads = reads = self.blocks.reads_like(of, like, layer)
            return reads
        if self.alike(layer) and (layers := self.decided_with(layer)):
            lookups = [each for n in layers if (each := self.layers[n].found) is not None]
            places = [each.wanted.places if each.slots is None else each.to_move for each in lookups]
            wanted = [(np.array(self.alike(n)), *at) for n, at in zip(layers, places, strict=True)]
            for (alike, *_), of_layers in zip(wanted, self.blocks.reads_together(wanted), strict=True):
                for n, one in zip(alike.tolist(), of_layers, strict=True):
                    self.layers[n].reads = one
        own = self.layers[layer].reads
        assert own is not None
        self._read_last = found, layer, own
        return own

    def reads_alike(self, layer: int, rows: np.ndarray, ids: np.ndarray) -> Iterator[tuple[LayerState, Reads]]:
        """Yields layers that are like this one, with how the same blocks of each are read."""
        alike = self.alike(layer)
        (found,) = self.blocks.reads_together([(np.array(alike), rows, ids)])
        for other, reads in zip(alike, found, strict=True):
            yield self.layers[other], reads

    def choose_ahead(self, layer: int, changing: BlockRows | None = None) -> None:
        """Chooses what is likely of a layer whose cache is swapped, and of the ones that are like it, without what is
        `changing`. Of layers that are decided together, the call for the first one chooses for all, and later calls do
        nothing."""
        staying, token_bytes = self.plan.staying, self.plan.token_bytes
        if not (layers := self.decided_with(layer)):
            return
        if self._together is None or len(layers) == 1:
            places = [self.layers[n].resident.ahead(staying.ahead, token_bytes, changing) for n in layers]
        else:
            places = self._together[1].ahead_each(staying.ahead, token_bytes)
        wanted = [(np.array(self.alike(n)), *at) for n, at in zip(layers, places, strict=True)]
        for (alike, *_), reads in zip(wanted, self.blocks.reads_together(wanted), strict=True):
            for n, found in zip(alike.tolist(), reads, strict=True):
                self.layers[n].swapped = found if len(found.offsets) else None

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
