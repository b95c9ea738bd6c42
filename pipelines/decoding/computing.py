"""Stages that compute a token and maintain KV blocks, each as a pipeline begins it and a planner prices it."""

from kvferry.layouts.pieces import Reads
from kvferry.machine.answers import Assigned
from kvferry.machine.handles import Attended
from kvferry.machine.ops import (
    Assign,
    Cluster,
    DecodeAttention,
    Extents,
    FeedForward,
    OutputHead,
    ProjectKv,
    ProjectQ,
    RestOfLayer,
    Split,
)
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.block_reads import reads_alike
from kvferry.pipelines.decoding.fetching import SwapIn
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Parts, Prices
from kvferry.pipelines.decoding.stage_kind import After, OfLayersAlike, Worker
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.pipelines.decoding.updates import renew, staying, write
from kvferry.policies.decode.kept_clusters import Maintenance, OfStep, Regroup, clusters_of
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.upkeep import Learned, Update
from kvferry.specs.tier import Tier


class Attend(OfLayersAlike):
    """Attention over what was brought, the newest tokens in memory, and the new one itself."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, tokens: float, kv: Attended | None = None, *, away: bool = True) -> DecodeAttention:
        # A selection is gathered from where its blocks lie, unless there are slots that hold nothing else, or a table
        # says where each page is.
        in_slots = away and plan.staying.slots == plan.choice.selected
        gathered = plan.choice.selected is not None and not in_slots and not plan.roles.attention.paged
        return DecodeAttention(plan.sequences, tokens, gathered, kv, plan.roles.attention)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        this = now.layers[layer]
        found, recent = this.found, now.kept.recent(layer)
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
                this.block_tokens,
                now.here(layer),
                this.reads,
                this.swapped,
                now.plan.roles.residency.swaps and now.away(layer),
                found.dropped,
            )
        tokens = this.tokens + recent + 1
        now.record.attends(tokens, now.tokens_stored, len(now.alike(layer)))
        op = self.op(now.plan, tokens, kv, away=now.away(layer))
        return now.machine.submit(op, after=after)

    def parts(self, prices: Prices) -> Parts:
        plan = prices.plan
        recent = plan.roles.upkeep.mean_recent(plan.choice.group_tokens, plan.output)
        return prices.work(self.op(plan, plan.brought_tokens + recent + 1, away=prices.tier != "device"))


class PassOn(OfLayersAlike):
    """The rest of the layer."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, tier: Tier, layer: int | None = None) -> FeedForward:
        return FeedForward(plan.sequences, layer, captured=plan.roles.captured(tier))

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, now.tiers[layer], layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.tier))


class ProjectQueries(OfLayersAlike):
    """The layer's query of the new token, where something needs it before attention."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None) -> ProjectQ:
        return ProjectQ(plan.sequences, layer)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class ProjectKeysValues(OfLayersAlike):
    """The layer's key and value of the new token, while KV moves that the query chose (DynaKV 6.1, pipeline 1)."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None) -> ProjectKv:
        return ProjectKv(plan.sequences, layer)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class AssignKeys(OfLayersAlike):
    """The cluster of every row that the new key is nearest to."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, stored: int, step: int, layer: int) -> Assign:
        return Assign(plan.sequences, stored, step, layer, heads=plan.choice.heads)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        op = self.op(now.plan, now.kept.in_all_rows(layer), now.step, layer)
        now.layers[layer].assigned = ticket = now.machine.submit(op, after=after)
        for n in now.alike.decided_with(layer)[1:]:
            other = self.op(now.plan, now.kept.in_all_rows(n), now.step, n)
            now.layers[n].assigned = now.alike.foretold(other)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.plan.choice.blocks, 0, 0))


class MaintainClusters(OfLayersAlike):
    """Does what a layer's new keys lead to: splits clusters, read first if not selected, or makes tokens clusters. Most
    often nothing."""

    worker: Worker = "processor"

    @staticmethod
    def op(
        plan: DecodePlan, asked: Maintenance, step: int, layer: int, at: Extents | None, reads: Reads | None
    ) -> Split | Cluster:
        n, heads = plan.sequences, plan.choice.heads
        if isinstance(asked, Regroup):
            sizes = n, asked.tokens, asked.clusters
            return Cluster(*sizes, layer, step, heads, asked.first, whole=asked.whole, at=at, reads=reads)
        return Split(n, sum(split.tokens for split in asked), step, layer, heads, asked, at, reads)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        this, found = now.layers[layer], now.layers[layer].found
        assert found is not None
        kept, alike = clusters_of(now.kept), now.alike(layer)
        if alike:
            if layers := now.alike.decided_with(layer):
                asked = kept.maintain_each([self._learned(now, n) for n in layers])
                for n, of in zip(layers, asked, strict=True):
                    now.layers[n].asked = of
            kept.maintain_like(alike[1:], layer)
            for other in (now.layers[n] for n in alike):
                other.asked, other.maintained, other.cut = this.asked, None, None
            if (absent := self._absent(this.asked, found.wanted.rows)) is not None:
                for other, reads in reads_alike(now, layer, *absent.places):
                    other.cut = reads
        if not this.asked:
            return now.done()
        at = None
        if this.cut is not None:
            at = Extents(*this.cut.ranges)
            if now.away(layer):
                cut = (now.layers[n].cut for n in alike)
                entries = [one.entries for one in cut if one is not None and one.entries is not None]
                now.record.cut_entries += sum(int(each.sum()) for each in entries)
                after, at = (now.machine.move(at, now.tiers[layer], "device"), *after), None
        op = self.op(now.plan, this.asked, now.step, layer, at, this.cut)
        ticket = now.machine.submit(op, after=after)
        # Layers that are alike are answered alike.
        for n in alike or (layer,):
            now.layers[n].maintained = ticket
        return ticket

    @staticmethod
    def _learned(now: DecodeState, layer: int) -> OfStep:
        assigned, found = now.layers[layer].assigned, now.layers[layer].found
        assert found is not None
        if assigned is None:
            return OfStep(layer, None, None, found)
        answer: Assigned = assigned.value
        return OfStep(layer, answer.ids.ravel(), answer.squared.ravel(), found)

    @staticmethod
    def _absent(asked: Maintenance, rows: int) -> BlockRows | None:
        """Returns the clusters that no query has brought; None: there are none."""
        if not asked:
            return None
        if isinstance(asked, Regroup):
            return asked.read
        absent = [(split.row, split.block) for split in asked if split.read]
        return BlockRows.of(absent, rows) if absent else None

    def parts(self, prices: Prices) -> Parts:
        """Left out of the mean: what is split depends on what keys say."""
        return ()


class PassOnRest(OfLayersAlike):
    """The rest of a layer whose projections have been done."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, tier: Tier, layer: int | None = None) -> RestOfLayer:
        return RestOfLayer(plan.sequences, layer, captured=plan.roles.captured(tier))

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        return now.machine.submit(self.op(now.plan, now.tiers[layer], layer), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, prices.tier))


class NextToken:
    """The next token of every sequence; what its KV completes goes to storage behind the reads."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, update: Update | None = None, stays: Extents | None = None) -> OutputHead:
        # Page tables are made beside a choice that is made before the pass.
        paged = plan.roles.attention.paged and not plan.roles.selector.for_all_layers
        if update is None:
            return OutputHead(plan.sequences, paged=paged)
        written = update.pieces
        return OutputHead(plan.sequences, update.complete, None, update.joined, stays, written, paged)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        for number, each in enumerate(now.layers):
            if (ticket := each.maintained) is not None:
                clusters_of(now.kept).maintained(number, ticket.value)
        update = now.kept.append(Learned([each.found for each in now.layers]))
        stays = staying(now, update) if update else None
        ticket = now.machine.submit(self.op(now.plan, update, stays), after=after)
        if update is not None:
            renew(now, update)
            if now.plan.roles.residency.swaps:
                SwapIn().begin_next_step(now, update)
            if now.last:
                # Written at once, it would be a race with the end of the run how much of it counts.
                now.unwritten = update, ticket
            else:
                write(now, update, ticket)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))

    @staticmethod
    def behind(prices: Prices, layers: int) -> Parts:
        """Prices the writing of what a token has completed: a block of every row of `layers`."""
        return prices.move(layers * prices.plan.rows, prices.plan.layout.stride_bytes, "device", prices.tier)
