"""Stages that choose KV blocks and move them to the processor, each as a pipeline begins it and a planner prices it."""

import numpy as np

from kvferry.layouts.pieces import Ranges, Reads
from kvferry.machine.answers import Selection
from kvferry.machine.handles import Rebuilt
from kvferry.machine.ops import Bookkeep, Extents, Reconstruct, Retrieve, Select
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.block_reads import choose_ahead, to_read
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Parts, Prices
from kvferry.pipelines.decoding.stage_kind import After, OfLayersAlike, Worker
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.pipelines.decoding.updates import changed_blocks
from kvferry.policies.decode.ranked import Ranked
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.upkeep import Update


class ChooseBlocks(OfLayersAlike):
    """Scores KV blocks and answers with the ones that attention wants."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, stored: int, step: int, layer: int) -> Select:
        assert plan.keys.index is not None
        ask = plan.roles.selector.ask(plan.keys.index, stored)
        return Select(plan.sequences, ask.blocks, ask.k, step, layer, heads=ask.heads, keys=ask.vectors, rank=ask.rank)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        # Blocks written while decoding can be chosen, too.
        op = self.op(now.plan, now.kept.stored(layer), now.step, layer)
        now.layers[layer].chosen = ticket = now.machine.submit(op, after=after)
        for other in now.alike.decided_with(layer)[1:]:
            now.layers[other].chosen = now.alike.foretold(self.op(now.plan, now.kept.stored(other), now.step, other))
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.choice.blocks, 0, 0))


class RetrieveBlocks:
    """A retrieval head chooses for all layers, before the first computes."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, stored: int, step: int) -> Retrieve:
        assert plan.keys.index is not None
        ask = plan.roles.selector.ask(plan.keys.index, stored)
        paged = plan.roles.attention.paged
        return Retrieve(plan.sequences, ask.blocks, ask.k, ask.vectors, step, heads=ask.heads, paged=paged)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        ticket = now.machine.submit(self.op(now.plan, now.kept.stored(layer), now.step), after=after)
        for each in now.layers:
            each.chosen = ticket
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.choice.blocks, 0))


def wanted_blocks(now: DecodeState, layer: int) -> tuple[BlockRows, np.ndarray | None]:
    """Returns what the selector makes of the machine's answer, and the tokens in each block; None: all are full."""
    chosen, plan = now.layers[layer].chosen, now.plan
    assert chosen is not None
    selector, answer = plan.roles.selector, chosen.value
    assert isinstance(answer, Selection)
    stored, scores = now.kept.stored(layer), answer.scores
    at_once = None if selector.clusters else selector.selected(plan.choice.group_tokens, stored)
    blocks = (
        BlockRows(answer.ids.reshape(plan.rows, -1)) if answer.starts is None else BlockRows(answer.ids, answer.starts)
    )
    ranked = Ranked(
        blocks=blocks,
        layer=layer,
        block_tokens=plan.choice.group_tokens,
        stored_blocks=stored,
        stored_tokens=now.tokens_stored,
        tokens=now.kept.tokens_of(layer, blocks),
        scores=None if scores is None else scores.reshape(blocks.ids.shape),
        most_blocks=max(plan.staying.slots, at_once or 0) or None,
    )
    wanted = selector.take(ranked)
    return wanted, ranked.tokens if wanted is blocks else now.kept.tokens_of(layer, wanted)


class LookUp(OfLayersAlike):
    """The host finds what is in memory already, and where the rest goes."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, blocks: int | None = None) -> Bookkeep:
        """None: for as many as are selected of the context."""
        return Bookkeep(plan.sequences * plan.blocks_per_selection if blocks is None else blocks, plan.staying.slots)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        this = now.layers[layer]
        alike = now.alike(layer)
        if alike and (layers := now.alike.decided_with(layer)):
            wanted = [wanted_blocks(now, n) for n in layers]
            for n, of, (_, tokens) in zip(layers, now.alike.look_up(layers, wanted), wanted, strict=True):
                self._found(now, n, of, tokens)
        found = this.found
        assert found is not None
        now.record.looked_up(found, this.brought, len(alike))
        blocks = found.wanted.ids.size if now.away(layer) else 0
        return now.machine.submit(self.op(now.plan, blocks), after=after)

    @staticmethod
    def _found(now: DecodeState, layer: int, found: Lookup, tokens: np.ndarray | None) -> None:
        """Notes what was found of a layer, for all that are like it."""
        this, plan, wanted = now.layers[layer], now.plan, found.wanted
        this.found, this.block_tokens, this.brought = found, tokens, 0
        if now.away(layer):
            # Swapped blocks come in every step, wherever they are found.
            came = slice(None) if plan.roles.residency.swaps else found.missing
            held = np.full(wanted.ids.shape, plan.choice.group_tokens) if tokens is None else tokens
            this.brought = int(held[came].sum())
        # Rows may differ: this is their mean.
        this.tokens = (
            wanted.widest * plan.choice.group_tokens if tokens is None else -(-int(tokens.sum()) // wanted.rows)
        )
        for other in (now.layers[n] for n in now.alike(layer)[1:]):
            other.found, other.block_tokens = found, tokens
            other.tokens, other.brought = this.tokens, this.brought

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, None if prices.tier != "device" else 0))


class Compare:
    """Compares what was chosen for all layers with what their slots hold, once (SpeContext 5.4)."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, blocks: int) -> Bookkeep:
        # A set difference: no slot is searched.
        return Bookkeep(blocks)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        plan = now.plan
        wanted, tokens = wanted_blocks(now, 0)
        ids, found = wanted.ids, now.layers[0].resident.look_up(wanted, tokens)
        away = sum(map(now.away, range(len(now.layers))))
        for each in now.layers:
            each.found, each.tokens = found, wanted.widest * plan.choice.group_tokens
        # Layers in the processor's memory have nothing to bring.
        now.record.looked_up(found, plan.choice.group_tokens * (ids.size - found.hits), away)
        return now.machine.submit(self.op(plan, ids.size if away else 0), after=after)

    def parts(self, prices: Prices) -> Parts:
        plan = prices.plan
        away = any(tier != "device" for tier in plan.tiers)
        return prices.work(self.op(plan, plan.sequences * plan.blocks_per_selection if away else 0))


class BringMissing(OfLayersAlike):
    """Chosen blocks that are not there yet move to the processor's memory."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        this = now.layers[layer]
        found = this.found
        assert found is not None
        reads = to_read(now, layer)
        if not now.away(layer):
            return now.there(layer, after)
        now.record.reads(now.layers[n].reads for n in now.alike(layer))
        missing = Extents(*self._with_newest(now, layer, reads))
        return now.machine.move(missing, now.tiers[layer], "device", after=(*after, *this.arriving))

    def moved(self, now: DecodeState, layer: int) -> Ranges | None:
        reads = now.layers[layer].reads
        assert reads is not None
        return self._with_newest(now, layer, reads)

    @staticmethod
    def _with_newest(now: DecodeState, layer: int, reads: Reads) -> Ranges:
        """With new tokens that found no room in the processor's memory, behind the blocks."""
        plan = now.plan
        more = 0 if plan.staying.newest_tokens is None else now.kept.recent(layer) - plan.staying.newest_tokens
        if more <= 0:
            return reads.ranges
        n_bytes = plan.sequences * more * plan.model.kv_entry_bytes
        return np.append(reads.offsets, plan.file_bytes), np.append(reads.lengths, n_bytes)

    def parts(self, prices: Prices) -> Parts:
        """Left out: new tokens that found no room."""
        return prices.move(prices.missing, prices.plan.layout.stride_bytes, prices.tier, "device")


class SwapIn(OfLayersAlike):
    """Brings what is likely of a layer into memory before its query says what it wants (DynaKV 6.1)."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        coming, now.coming = now.coming, None
        if coming is None and now.alike(layer):
            choose_ahead(now, layer)
        return coming or self._move(now, layer, after) or (after[0] if after else now.done())

    def begin_next_step(self, now: DecodeState, update: Update) -> None:
        """Begins the first layer of the next step, beside the output head of this one: without what this step changes,
        which is written behind the head."""
        if not now.last and not now.plan.layout.moves:
            choose_ahead(now, 0, changed_blocks(update, 0))
            now.coming = self._move(now, 0, ())

    @staticmethod
    def _move(now: DecodeState, layer: int, after: After) -> Ticket | None:
        """Returns None where nothing has to come."""
        reads = now.layers[layer].swapped
        if reads is None or not now.away(layer):
            return None
        now.record.reads(now.layers[n].swapped for n in now.alike(layer))
        return now.machine.move(Extents(*reads.ranges), now.tiers[layer], "device", after=after)

    def moved(self, now: DecodeState, layer: int) -> Ranges | None:
        reads = now.layers[layer].swapped
        return None if reads is None else reads.ranges

    def parts(self, prices: Prices) -> Parts:
        """Prices reads of blocks of the context's size: as many as there is time for."""
        plan, ahead = prices.plan, prices.plan.staying.ahead
        blocks = plan.rows * plan.staying.tokens / plan.choice.group_tokens
        if ahead is not None:
            blocks = min(blocks, ahead.window_s / (ahead.command_s + ahead.byte_s * plan.layout.block_bytes))
        return prices.move(blocks, plan.layout.stride_bytes, prices.tier, "device")


class BringIndex(OfLayersAlike):
    """The vectors that a layer's KV blocks are scored by come into memory: a range for each row, behind the KV."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        if not now.away(layer):
            return after[0] if after else now.done()
        return now.machine.move(Extents(*self.moved(now, layer)), now.tiers[layer], "device", after=after)

    def moved(self, now: DecodeState, layer: int) -> Ranges:
        return now.plan.file.index_rows(layer, now.kept.stored(layer))

    def parts(self, prices: Prices) -> Parts:
        plan = prices.plan
        return prices.move(plan.rows, plan.choice.blocks * plan.keys.vector_bytes, prices.tier, "device")


class BringAll:
    """All blocks of a layer move to the processor's memory."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        this = now.layers[layer]
        stored = now.kept.stored(layer)
        this.tokens = stored * now.plan.choice.group_tokens
        if not now.away(layer):
            return now.there(layer, after)
        whole = Extents(*now.blocks.stretches(layer, stored))
        return now.machine.move(whole, now.tiers[layer], "device", after=(*after, *this.arriving))

    def parts(self, prices: Prices) -> Parts:
        return prices.move(prices.plan.rows, prices.plan.row_bytes, prices.tier, "device")


class WriteBack:
    """Sends all blocks of a layer back to where they lie, as attention has made a new tensor of them."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        if not now.away(layer):
            return after[0] if after else now.done()
        return now.machine.move(now.whole(layer), "device", now.tiers[layer], after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.move(prices.plan.rows, prices.plan.row_bytes, "device", prices.tier)


class RebuildKeys:
    """Keys of the chosen tokens are rebuilt while their values move (ShadowKV's second stream)."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, tokens: float, kv: Rebuilt | None = None) -> Reconstruct:
        assert plan.keys.rebuilt_rank is not None
        return Reconstruct(plan.sequences, tokens, plan.keys.rebuilt_rank, kv)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        this = now.layers[layer]
        found = this.found
        kv = Rebuilt(layer, None if found is None else found.wanted.ids)
        return now.machine.submit(self.op(now.plan, this.tokens, kv), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.brought_tokens))
