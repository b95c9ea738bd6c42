"""What each stage of decoding is: how a pipeline begins it, and what a planner prices it at. One is the other's op."""

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from kvferry.machine.handles import Attended, Rebuilt
from kvferry.machine.ops import (
    Assign,
    Assigned,
    Bookkeep,
    Cluster,
    Clustered,
    DecodeAttention,
    Decompose,
    Divided,
    Extents,
    FeedForward,
    OutputHead,
    PrefillLayer,
    ProjectQkv,
    Reconstruct,
    RestOfLayer,
    Retrieve,
    Select,
    Selection,
    Split,
)
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Parts, Prices
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.policies.decode.pieces import Pieces, Reads
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.tending import Regroup, Tending, clusters_of
from kvferry.policies.decode.upkeep import Learned, Update

# What works at a stage: the processor, or what moves KV between the tiers.
Worker = Literal["processor", "mover"]
After = Sequence[Ticket]


class Kind(Protocol):
    worker: Worker

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket: ...

    def parts(self, prices: Prices) -> Parts:
        """What it takes on average, queue by queue."""
        ...


# --- choosing and moving -----------------------------------------------------------------------------------------


class ChooseBlocks:
    """The machine scores KV blocks and answers with those that attention wants."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, stored: int, step: int, layer: int) -> Select:
        assert plan.index is not None
        ask = plan.roles.selector.ask(plan.index, stored)
        return Select(plan.sequences, ask.blocks, ask.k, step, layer, heads=ask.heads, keys=ask.vectors, rank=ask.rank)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        # What was written while decoding can be chosen, too.
        op = self.op(now.plan, now.kept.stored(layer), now.step, layer)
        now.chosen[layer] = ticket = now.machine.submit(op, after=after)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.blocks, 0, 0))


class RetrieveBlocks:
    """A retrieval head chooses for all layers, before the first computes."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, stored: int, step: int) -> Retrieve:
        assert plan.index is not None
        ask = plan.roles.selector.ask(plan.index, stored)
        return Retrieve(plan.sequences, ask.blocks, ask.k, ask.vectors, step, heads=ask.heads)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        ticket = now.machine.submit(self.op(now.plan, now.kept.stored(layer), now.step), after=after)
        now.chosen = [ticket] * len(now.chosen)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.blocks, 0))


class LookUp:
    """The host finds what is in memory already, and where the rest goes."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, blocks: int | None = None) -> Bookkeep:
        """None: for as many as are selected of the context."""
        return Bookkeep(plan.sequences * plan.blocks_per_selection if blocks is None else blocks, plan.slots)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        chosen, plan = now.chosen[layer], now.plan
        assert chosen is not None
        selection: Selection = chosen.value
        ids, starts = selection.ids, selection.starts
        ranked = BlockRows(ids.reshape(plan.rows, -1)) if starts is None else BlockRows(ids, starts)
        tokens = now.kept.tokens_of(layer, ranked)
        wanted, tokens = plan.roles.selector.take(ranked, tokens, now.tokens_stored, plan.slots or None)
        now.block_tokens[layer] = tokens
        now.found[layer] = found = now.residents[layer].look_up(wanted, tokens)
        now.record.blocks_wanted += wanted.ids.size
        now.record.blocks_reused += found.hits
        if now.away(layer):
            # What is swapped comes anew in every step, wherever it is found.
            came = found.missing if now.swapped[layer] is None else np.ones(wanted.ids.shape, bool)
            entries = plan.group_tokens * int(came.sum()) if tokens is None else int(tokens[came].sum())
            now.record.brought_entries += entries
        # Where rows differ, the mean of them.
        now.tokens[layer] = (
            wanted.widest * plan.group_tokens if tokens is None else -(-int(tokens.sum()) // wanted.rows)
        )
        return now.machine.submit(self.op(plan, wanted.ids.size if now.away(layer) else 0), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, None if prices.tier != "device" else 0))


class BringMissing:
    """Chosen blocks that are not there yet move to the processor's memory."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        found = now.found[layer]
        assert found is not None
        reads = now.to_read(layer)
        if not now.away(layer):
            return now.there(layer, after)
        now.record.reads(reads)
        missing = Extents(*reads.ranges)
        return now.machine.move(missing, now.tiers[layer], "device", after=(*after, *now.arriving[layer]))

    def parts(self, prices: Prices) -> Parts:
        return prices.move(prices.missing, prices.plan.layout.stride_bytes, prices.tier, "device")


class SwapIn:
    """What is kept of a layer comes into memory before the layer needs it (DynaKV 6.1)."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        now.swapped[layer] = None
        held = now.residents[layer].held()
        if not now.away(layer) or not len(held[0]):
            return after[0] if after else now.done()
        now.swapped[layer] = reads = now.blocks.reads(layer, *held)
        return now.machine.move(Extents(*reads.ranges), now.tiers[layer], "device", after=after)

    def parts(self, prices: Prices) -> Parts:
        plan = prices.plan
        blocks = plan.rows * plan.kept_tokens / plan.group_tokens
        return prices.move(blocks, plan.layout.stride_bytes, prices.tier, "device")


class BringIndex:
    """The vectors that a layer's KV blocks are scored by come into memory: a range for each row, behind the KV."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        plan = now.plan
        if not now.away(layer):
            return after[0] if after else now.done()
        n_bytes = now.kept.stored(layer) * plan.vector_bytes
        begins = plan.layout.file_bytes + (layer * plan.rows + np.arange(plan.rows)) * plan.index_row_bytes
        rows = Extents(begins, np.full(plan.rows, n_bytes))
        return now.machine.move(rows, now.tiers[layer], "device", after=after)

    def parts(self, prices: Prices) -> Parts:
        plan = prices.plan
        return prices.move(plan.rows, plan.blocks * plan.vector_bytes, prices.tier, "device")


class BringAll:
    """All blocks of a layer move to the processor's memory."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        stored = now.kept.stored(layer)
        now.tokens[layer] = stored * now.plan.group_tokens
        if not now.away(layer):
            return now.there(layer, after)
        whole = Extents(*now.blocks.stretches(layer, stored))
        return now.machine.move(whole, now.tiers[layer], "device", after=(*after, *now.arriving[layer]))

    def parts(self, prices: Prices) -> Parts:
        return prices.move(prices.plan.rows, prices.plan.row_bytes, prices.tier, "device")


class RebuildKeys:
    """Keys of the chosen tokens are rebuilt while their values move (ShadowKV's second stream)."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, tokens: float, kv: Rebuilt | None = None) -> Reconstruct:
        assert plan.rebuilt_rank is not None
        return Reconstruct(plan.sequences, tokens, plan.rebuilt_rank, kv)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        found = now.found[layer]
        kv = Rebuilt(layer, None if found is None else found.wanted.ids)
        return now.machine.submit(self.op(now.plan, now.tokens[layer], kv), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.brought_tokens))


# --- computing ---------------------------------------------------------------------------------------------------


class Attend:
    """Attention over what was brought, the newest tokens in memory, and the new one itself."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, tokens: float, kv: Attended | None = None) -> DecodeAttention:
        # A selection is gathered from where its blocks lie.
        return DecodeAttention(plan.sequences, tokens, plan.selected is not None, kv)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        found, recent = now.found[layer], now.kept.recent(layer)
        kv = Attended(layer, None, None, recent, at=now.here(layer))
        if found is not None:
            wanted = found.wanted
            kv = Attended(
                layer,
                found.missing,
                found.slots,
                recent,
                wanted.ids,
                wanted.starts,
                now.block_tokens[layer],
                now.here(layer),
                now.reads[layer],
                now.swapped[layer],
                found.dropped,
            )
        return now.machine.submit(self.op(now.plan, now.tokens[layer] + recent + 1, kv), after=after)

    def parts(self, prices: Prices) -> Parts:
        plan = prices.plan
        recent = plan.roles.upkeep.mean_recent(plan.group_tokens, plan.output)
        return prices.work(self.op(plan, plan.brought_tokens + recent + 1))


class PassOn:
    """The rest of the layer."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None) -> FeedForward:
        return FeedForward(plan.sequences, layer)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class ProjectQueries:
    """The layer's query, key and value of the new token, where something needs them before attention."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None) -> ProjectQkv:
        return ProjectQkv(plan.sequences, layer)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class AssignKeys:
    """The cluster of every row that the new key is nearest to."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, stored: int, step: int, layer: int) -> Assign:
        return Assign(plan.sequences, stored, step, layer, heads=plan.heads)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        op = self.op(now.plan, now.kept.in_all_rows(layer), now.step, layer)
        now.assigned[layer] = ticket = now.machine.submit(op, after=after)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.blocks, 0, 0))


class TendClusters:
    """What a layer's new keys lead to: clusters that are cut, having been read first if not selected, or
    tokens that become clusters. Most often nothing."""

    worker: Worker = "processor"

    @staticmethod
    def cut(
        plan: DecodePlan, tending: Tending, step: int, layer: int, at: Extents | None, reads: Reads | None
    ) -> Split:
        tokens = sum(cut.tokens for cut in tending.cuts)
        return Split(plan.sequences, tokens, step, layer, plan.heads, tending.cuts, at, reads)

    @staticmethod
    def group(
        plan: DecodePlan, regroup: Regroup, step: int, layer: int, at: Extents | None, reads: Reads | None
    ) -> Cluster:
        sizes = plan.sequences, regroup.tokens, regroup.clusters
        return Cluster(*sizes, layer, step, plan.heads, regroup.first, whole=regroup.whole, at=at, reads=reads)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        assigned, found = now.assigned[layer], now.found[layer]
        assert found is not None
        ids = squared = None
        if assigned is not None:
            answer: Assigned = assigned.value
            ids, squared = answer.ids.ravel(), answer.squared.ravel()
        tending = clusters_of(now.kept).tend(layer, ids, squared, found)
        if tending is None:
            now.tended[layer] = None
            return now.done()
        at = reads = None
        if tending.read is not None:
            reads = now.blocks.reads(layer, *tending.read.places)
            at = Extents(*reads.ranges)
            if now.away(layer):
                after, at = (now.machine.move(at, now.tiers[layer], "device"), *after), None
        if tending.regroup is None:
            op: Split | Cluster = self.cut(now.plan, tending, now.step, layer, at, reads)
        else:
            op = self.group(now.plan, tending.regroup, now.step, layer, at, reads)
        now.tended[layer] = ticket = now.machine.submit(op, after=after)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        """Left out of the mean: what is cut depends on what keys say."""
        return ()


class PassOnRest:
    """The rest of a layer whose projections have been done."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None) -> RestOfLayer:
        return RestOfLayer(plan.sequences, layer)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class NextToken:
    """The next token of every sequence; what its KV completes goes to storage behind the reads."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, update: Update | None = None, stays: Extents | None = None) -> OutputHead:
        if update is None:
            return OutputHead(plan.sequences)
        written = Pieces.together([change.written for change in update.changes]) if update.changes else None
        return OutputHead(plan.sequences, update.complete, joined=update.joined, stays=stays, written=written)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        for tended, ticket in enumerate(now.tended):
            if ticket is not None:
                answer: Divided | Clustered = ticket.value
                leaves = answer.leaves if isinstance(answer, Divided) else ()
                labels = answer.labels if isinstance(answer, Clustered) else None
                clusters_of(now.kept).outcome(tended, answer.tokens, answer.variances, leaves, labels)
        update = now.kept.append(Learned(now.found))
        stays = now.staying(update) if update else None
        ticket = now.machine.submit(self.op(now.plan, update, stays), after=after)
        if update is not None:
            now.renew(update)
            now.write(update, ticket)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))

    @staticmethod
    def behind(prices: Prices, layers: int) -> Parts:
        """Writing what a token has completed: a block of every row of so many layers."""
        return prices.move(layers * prices.plan.rows, prices.plan.layout.stride_bytes, "device", prices.tier)


# --- prefill -----------------------------------------------------------------------------------------------------


class PrefillOne:
    """One layer over the whole context."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None, stays: Extents | None = None) -> PrefillLayer:
        return PrefillLayer(plan.sequences, plan.context, layer, stays=stays)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        stays = None if now.away(layer) or now.plan.roles.layout.before_write else now.whole(layer)
        return now.machine.submit(self.op(now.plan, layer, stays), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class ClusterKeys:
    """A layer's context becomes clusters of like keys, which are its KV blocks from then on."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int) -> Cluster:
        references = min(plan.roles.layout.reference_queries, plan.context)
        k = 0 if plan.selected is None else min(plan.selected, plan.blocks)
        clusters = plan.sequences, plan.context, plan.blocks
        return Cluster(*clusters, layer, heads=plan.heads, references=references, k=k)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        now.clustered[layer] = ticket = now.machine.submit(self.op(now.plan, layer), after=after)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, 0))


class WriteOut:
    """The whole blocks of a layer's context go to the tier where they are to lie."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        if (ticket := now.clustered[layer]) is not None:
            found: Clustered = ticket.value
            clusters_of(now.kept).filled(layer, found.tokens, found.variances, found.labels, found.retrieved)
            if not now.away(layer):
                # Its place was not known before.
                return now.machine.copy(now.whole(layer), "device", after=after)
        if not now.away(layer):
            return after[0]
        return now.machine.move(now.whole(layer), "device", now.tiers[layer], after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.move(prices.plan.rows, prices.plan.row_bytes, "device", prices.tier)


class DecomposeKeys:
    """A layer's keys, so that they can be rebuilt."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None) -> Decompose:
        return Decompose(plan.sequences, plan.context, layer)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class FirstToken:
    """The token that prefill ends with."""

    worker: Worker = "processor"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(NextToken.op(now.plan), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(NextToken.op(prices.plan))


KINDS: dict[str, Kind] = {
    "prefill": PrefillOne(),
    "write_out": WriteOut(),
    "cluster": ClusterKeys(),
    "decompose": DecomposeKeys(),
    "first_token": FirstToken(),
    "retrieve": RetrieveBlocks(),
    "project": ProjectQueries(),
    "select": ChooseBlocks(),
    "look_up": LookUp(),
    "bring": BringMissing(),
    "bring_all": BringAll(),
    "bring_index": BringIndex(),
    "swap": SwapIn(),
    "rebuild": RebuildKeys(),
    "attend": Attend(),
    "assign": AssignKeys(),
    "tend": TendClusters(),
    "feed_forward": PassOn(),
    "rest": PassOnRest(),
    "next_token": NextToken(),
}
