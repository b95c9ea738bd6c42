"""Clusters of a plan as decoding goes on: by what generated keys say, without a machine and without time."""

from dataclasses import dataclass

import numpy as np

from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.kept_clusters import KeptClusters, clusters_of
from kvferry.policies.decode.splits import Clustered
from kvferry.specs.workload import KeysSpec
from kvferry.traces.clustered_keys import ClusteredKeys
from kvferry.traces.drawn_clusters import DrawnClusters
from kvferry.traces.key_process import KeyProcess


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Measures the clusters there are. ``variance``: the mean squared distance of keys to their centroids. ``clusters``
    per row, and ``waiting``, keys per row that belong to none or wait for one. ``recall``: of the entries that the
    present query wants most, as many as a selection is to hold, the share that is in clusters that are retrieved, or in
    memory. ``read``: what these hold, over all entries."""

    tokens: int
    variance: float
    clusters: float
    waiting: float
    recall: float
    read: float


class Evolution:
    """The clusters of a plan's rows, token by token. InputError for a plan whose KV blocks are no clusters."""

    def __init__(self, plan: DecodePlan, statistics: KeysSpec, seed: int) -> None:
        self.plan, self.tokens = plan, plan.context
        self.keys = ClusteredKeys(
            KeyProcess(statistics),
            layers=plan.model.layers,
            sequences=plan.sequences,
            heads=plan.choice.heads,
            context=plan.context,
            output=plan.output,
            most=plan.layout.blocks,
            seed=seed,
        )
        kept = plan.roles.upkeep.start(plan.context, plan.choice.group_tokens, plan.layout.start())
        self.kept: KeptClusters = clusters_of(kept)
        clusters = DrawnClusters(self.keys)
        for layer in range(plan.model.layers):
            found = clusters.prompts(layer, plan.choice.blocks)
            self.kept.filled(layer, Clustered(found.tokens, found.variances))

    def go(self, tokens: int) -> None:
        """Adds `tokens`."""
        self.kept.skip(tokens, self.tokens, self.keys, self.plan.roles.selector.wanted_tokens)
        self.tokens += tokens

    def quality(self) -> Quality:
        """Returns how the token under way finds them."""
        wanted = self.plan.roles.selector.wanted_tokens(self.tokens)
        recall, read = self.keys.recall(wanted)
        table = self.keys.table
        return Quality(
            tokens=self.tokens,
            variance=float(table.squares.sum() / table.counts.sum()),
            clusters=float(table.used.mean()),
            waiting=float(self.tokens - table.counts.sum() / len(table.counts)),
            recall=recall,
            read=read,
        )


def wanted_again(evolution: Evolution, tokens: int, within: tuple[int, ...]) -> dict[int, float]:
    """Returns the share of clusters that a new key joined which a query wants within this many tokens more (DynaKV
    Tab. 2): over all rows and over `tokens` tokens."""
    keys, updated, wanted = evolution.keys, list[np.ndarray](), list[np.ndarray]()
    for _ in range(tokens + max(within)):
        evolution.go(1)
        updated.append(keys.joined())
        wanted.append(keys.best(evolution.plan.roles.selector.wanted_tokens(evolution.tokens)))
    rows = np.arange(len(updated[0]))
    shares = {}
    for most in within:
        hits = []
        for token, clusters in enumerate(updated[:tokens]):
            later = wanted[token + 1 : token + 1 + most]
            there = clusters >= 0
            hits.append(np.any([one[rows, clusters] for one in later], axis=0)[there])
        shares[most] = float(np.concatenate(hits).mean())
    return shares
