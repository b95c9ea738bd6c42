"""Which tokens real attention took in, layer by layer and step by step, from what the pipeline asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.cluster_format import ClusterFormat
from kvferry.backends.live.decoding.cluster_members import ClusterMembers
from kvferry.machine.handles import Attended
from kvferry.machine.ops import Cluster, Split
from kvferry.policies.decode.splits import Clustered, Joined, SplitParts


@dataclass(frozen=True, slots=True, eq=False)
class AttendedAt:
    """Holds what a layer took in at a step: of each row the tokens that were ``chosen``, None: all that are stored; and
    of the ``before`` tokens that there were, of which ``stored`` could be chosen, the ``recent`` ones."""

    chosen: Sequence[np.ndarray] | np.ndarray | None
    before: int
    stored: int
    recent: int


class AttendedTokens:
    """Notes what attention took in. Tokens of clusters are followed by what is said of clusters."""

    def __init__(self, format: BlockFormat | ClusterFormat, *, context: int) -> None:
        layout = format.layout
        self._heads, self._rows = layout.rows // layout.sequences, layout.rows
        self._group = format.group_tokens if isinstance(format, BlockFormat) else 1
        self._members: ClusterMembers | None = None
        if isinstance(format, ClusterFormat):
            self._members = ClusterMembers(layers=layout.layers, context=context)
        # By layer, step after step.
        self.at: list[list[AttendedAt]] = [[] for _ in range(layout.layers)]

    # --- told by layers as they run ------------------------------------------------------------------------------

    def attended(self, kv: Attended, before: int, kept: int) -> None:
        """A layer's attention takes in `kv`; `before` tokens came before the one under way, the last `kept` of them
        belong to no stored block."""
        chosen: Sequence[np.ndarray] | np.ndarray | None = kv.ids
        if kv.ids is not None and self._members is not None:
            assert kv.starts is not None
            by_row = (kv.ids[kv.starts[row] : kv.starts[row + 1]].tolist() for row in range(self._rows))
            of = self._members
            chosen = [
                np.concatenate([np.empty(0, np.int64), *(of.with_waiting(kv.layer, (row, block)) for block in blocks)])
                for row, blocks in enumerate(by_row)
            ]
        self.at[kv.layer].append(AttendedAt(chosen, before, before - kept, kv.recent))

    def clustered(self, op: Cluster, found: Clustered) -> None:
        """Tokens have become clusters."""
        assert self._members is not None and found.labels is not None
        if op.step < 0:
            self._members.prompts(op.layer, found.labels)
        else:
            self._members.grouped(op.layer, op.first, found.labels, op.whole)

    def split(self, op: Split, parts: SplitParts) -> None:
        """Clusters have been split."""
        assert self._members is not None and parts.leaves is not None
        for split, leaves in zip(op.splits, parts.leaves, strict=True):
            self._members.split(op.layer, split, leaves)

    def grown(self, joined: Sequence[Sequence[Joined] | None]) -> None:
        """The token under way has passed all layers."""
        if self._members is None:
            return
        for layer, of_layer in enumerate(joined):
            self._members.joined(layer, of_layer)
        self._members.token += 1

    # --- asked once all is decoded -------------------------------------------------------------------------------

    def chosen(self, layer: int, step: int, sequence: int, kv_heads: int) -> torch.Tensor:
        """Returns bool[KV heads, tokens before]: the ones that were chosen from the stored."""
        at = self.at[layer][step]
        if at.chosen is None:
            return (torch.arange(at.before) < at.stored).expand(kv_heads, -1)
        there = np.zeros((self._heads, at.before), bool)
        for head, row in enumerate(range(sequence * self._heads, (sequence + 1) * self._heads)):
            blocks = np.asarray(at.chosen[row], np.int64)
            there[head, (blocks[:, None] * self._group + np.arange(self._group)).ravel()] = True
        return torch.from_numpy(there).repeat_interleave(kv_heads // self._heads, 0)

    def all(self, layer: int, step: int, sequence: int, kv_heads: int) -> torch.Tensor:
        """Returns bool[KV heads, tokens with the one under way]: all that attention took in."""
        at = self.at[layer][step]
        newest = torch.arange(at.before + 1) >= at.before - at.recent
        chosen = self.chosen(layer, step, sequence, kv_heads)
        return torch.cat([chosen, torch.zeros(kv_heads, 1, dtype=torch.bool)], 1) | newest

    def hits_and_mass(self, layer: int, sequence: int, mass: torch.Tensor) -> tuple[list[float], list[float]]:
        """Returns two figures of each step, in the mean over KV heads, by true attention mass [KV heads, steps,
        tokens]: of the k stored tokens with most of it, the share among the k that were chosen; and the share of it on
        all tokens that were taken in."""
        hits, held = [], []
        for step, at in enumerate(self.at[layer][: mass.shape[1]]):
            by_token = mass[:, step, : at.before + 1].cpu()
            chosen, taken = (of(layer, step, sequence, len(mass)) for of in (self.chosen, self.all))
            hits.append(_share_hit(by_token[:, : at.stored], chosen[:, : at.stored]))
            held.append(float(((by_token * taken).sum(1) / by_token.sum(1)).mean()))
        return hits, held


def _share_hit(mass: torch.Tensor, chosen: torch.Tensor) -> float:
    counts = chosen.sum(1)
    if not counts.min():
        return float("nan")
    order = mass.argsort(dim=1, descending=True, stable=True)
    best = torch.arange(mass.shape[1]) < counts[:, None]
    return float(((chosen.gather(1, order) & best).sum(1) / counts).mean())
