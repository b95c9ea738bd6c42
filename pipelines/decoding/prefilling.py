"""Stages of prefill, each as a pipeline begins it and a planner prices it."""

from kvferry.layouts.layout import Layout
from kvferry.machine.ops import Cluster, Decompose, Extents, PrefillLayer
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.computing import NextToken
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Parts, Prices
from kvferry.pipelines.decoding.stage_kind import After, Worker
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.policies.decode.kept_clusters import clusters_of


class PrefillOne:
    """One layer over the whole context."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int | None = None, stays: Extents | None = None) -> PrefillLayer:
        known = plan.known_tokens
        kernel = plan.roles.attention
        return PrefillLayer(
            plan.sequences, plan.context - known, layer, stays=stays, kernel=kernel, context_tokens=known
        )

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        stays = None if now.away(layer) or now.plan.roles.layout.before_write else now.whole(layer)
        return now.machine.submit(self.op(now.plan, layer, stays), after=after)

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan))


class BringKnown:
    """Brings the known KV of a layer to the processor, whose prompt attends to it."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        known, blocks = now.plan.known, now.blocks
        spans = [] if known is None else now.plan.blocks_of(known.stored.without(known.near))
        if not spans or not now.away(layer):
            return after[0] if after else now.done()
        # Clusters are of any tokens: all there are come.
        most = spans[-1][1]
        there = Extents(*(blocks.parts(layer, spans) if isinstance(blocks, Layout) else blocks.stretches(layer, most)))
        return now.machine.move(there, now.tiers[layer], "device", after=after)

    def parts(self, prices: Prices) -> Parts:
        """Left out: a planner's prompts are new."""
        return ()


class ClusterKeys:
    """A layer's context becomes clusters of like keys, which are its KV blocks from then on."""

    worker: Worker = "processor"

    @staticmethod
    def op(plan: DecodePlan, layer: int) -> Cluster:
        references = min(plan.roles.layout.reference_queries, plan.context)
        k = 0 if plan.choice.selected is None else min(plan.choice.selected, plan.choice.blocks)
        clusters = plan.sequences, plan.context, plan.choice.blocks
        return Cluster(*clusters, layer, heads=plan.choice.heads, references=references, k=k)

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        now.layers[layer].clustered = ticket = now.machine.submit(self.op(now.plan, layer), after=after)
        return ticket

    def parts(self, prices: Prices) -> Parts:
        return prices.work(self.op(prices.plan, 0))


class WriteOut:
    """The whole blocks of a layer's context go to the tier where they are to lie."""

    worker: Worker = "mover"

    def begin(self, now: DecodeState, layer: int, after: After) -> Ticket:
        if (ticket := now.layers[layer].clustered) is not None:
            clusters_of(now.kept).filled(layer, ticket.value)
            if not now.away(layer):
                # Its place was not known before.
                return now.machine.move(now.whole(layer), "host", "device", after=after)
        if not now.away(layer):
            return after[0]
        new = now.new(layer)
        return after[0] if new is None else now.machine.move(new, "device", now.tiers[layer], after=after)

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
