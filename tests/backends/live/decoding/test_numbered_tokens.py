"""Every token with its own number: what a step's attention is given is what was wanted, in every layout, layer and row.

The values that a real run keeps are replaced by the number of their layer, row and token, so small that they change
nothing else; keys are compared with what was computed. Which tokens are in which cluster is followed from the answers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoding import roles_of
from small_decoding import SmallDecoding

from kvferry.machine.ops import Cluster, OutputHead, Split
from kvferry.policies.decode.centroids import Centroids
from kvferry.policies.decode.cluster_caches import VirtualCache, WholeCache
from kvferry.policies.decode.cluster_places import ClusterByCluster, ClusterPools, DualHeads, SequenceOrdered
from kvferry.policies.decode.cluster_upkeep import AdaptiveClusters, StaticClusters
from kvferry.policies.decode.global_clusters import GlobalClusters
from kvferry.policies.decode.local_clusters import LocalClusters
from kvferry.policies.decode.placement import OneTier
from kvferry.policies.decode.roles import Roles

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
# Numbers of tokens are exact in single precision, and too small to be felt.
_UNIT, _TOKENS = 2.0**-40, 512
# Of a layer: 2 sides, 2 heads, 16 numbers of 4 B.
TOKEN_BYTES = 2 * 2 * 16 * 4


class NumberedDecoding(SmallDecoding):
    """``wrong`` says where attention was given other tokens than were wanted, ``compared`` how often it was looked."""

    def __init__(self, *given: Any, **sizes: Any) -> None:
        super().__init__(*given, **sizes)
        self.wrong: list[str] = []
        self.compared = 0
        plan, blocks = self.plan, self.runner.blocks
        rows = [(layer, row) for layer in range(plan.model.layers) for row in range(plan.rows)]
        # By layer and row, the tokens of each cluster in the order in which they came, and those that wait for it.
        self._members: dict[tuple[int, int], dict[int, list[int]]] = {place: {} for place in rows}
        self._waiting: dict[tuple[int, int], dict[int, list[int]]] = {place: {} for place in rows}
        self._keys: list[list[Any]] = [[] for _ in range(plan.model.layers)]
        self._really = blocks.prefilled, blocks.put, blocks.attended, self.runner.run
        blocks.prefilled, blocks.put, blocks.attended = self._prefilled, self._put, self._attended
        self.runner.run = self._run

    def _prefilled(self, layer: int, keys: Any, values: Any, order: Any) -> Any:
        return self._really[0](layer, keys, self._numbered(layer, keys), order)

    def _put(self, layer: int, keys: Any, values: Any) -> None:
        self._really[1](layer, keys, self._numbered(layer, keys))

    def _numbered(self, layer: int, keys: Any) -> Any:
        """Values like these keys, which are noted: sequences, KV heads, tokens, numbers."""
        first = sum(one.shape[2] for one in self._keys[layer])
        self._keys[layer].append(keys.clone())
        sequences, heads, tokens, _ = keys.shape
        places = (layer * sequences + torch.arange(sequences))[:, None] * heads + torch.arange(heads)
        numbers = places[:, :, None] * _TOKENS + first + torch.arange(tokens)
        return (numbers[..., None] * _UNIT).expand(keys.shape).contiguous()

    def _attended(self, kv: Any, *read: Any) -> Any:
        keys, values, there = self._really[2](kv, *read)
        computed, each = torch.cat(self._keys[kv.layer], dim=2), self.plan.model.kv_heads // self.plan.choice.heads
        numbers = (values / _UNIT).round().long()
        for sequence, head in np.ndindex(keys.shape[:2]):
            row = sequence * self.plan.choice.heads + head // each
            wanted = self._wanted(kv, row, computed.shape[2])
            here = slice(None) if there is None else there[sequence, head, 0]
            place = (kv.layer * keys.shape[0] + sequence) * keys.shape[1] + head
            found = numbers[sequence, head][here] - place * _TOKENS
            same = found.shape[0] == len(wanted) and (found == torch.tensor(wanted)[:, None]).all()
            if same and self.plan.keys.rebuilt_rank is None:
                same = torch.equal(keys[sequence, head][here], computed[sequence, head, wanted])
            self.compared += 1
            if not same:
                self.wrong.append(f"layer {kv.layer}, row {row}: {found[:, 0].tolist()}, not {wanted}")
        return keys, values, there

    def _wanted(self, kv: Any, row: int, tokens: int) -> list[int]:
        """Tokens of a row that attention is to be given, in order: those of its blocks, the newest, the one under
        way."""
        newest = list(range(tokens - 1 - kv.recent, tokens))
        if kv.ids is None:
            return list(range(tokens))
        if kv.starts is None:
            each = self.plan.choice.group_tokens
            return [
                token for block in kv.ids[row].tolist() for token in range(block * each, (block + 1) * each)
            ] + newest
        members, waiting = self._members[kv.layer, row], self._waiting[kv.layer, row]
        ids = kv.ids[kv.starts[row] : kv.starts[row + 1]].tolist()
        return [token for block in ids for token in (*members[block], *waiting.get(block, []))] + newest

    def _run(self, op: Any, *more: Any, **named: Any) -> Any:
        answer = self._really[3](op, *more, **named)
        if isinstance(op, Cluster):
            for row, labels in enumerate(answer.labels):
                self._clustered(op, row, np.asarray(labels))
        elif isinstance(op, Split):
            for split, leaves in zip(op.splits, answer.leaves, strict=True):
                members, waiting = self._members[op.layer, split.row], self._waiting[op.layer, split.row]
                came = waiting.pop(split.block, []) + ([self._newest(op.layer)] if split.joins else [])
                tokens = np.array(members[split.block] + came)
                members[split.block] = tokens[~leaves].tolist()
                if split.new is not None:
                    members[split.new] = tokens[leaves].tolist()
        elif isinstance(op, OutputHead):
            for layer, of_layer in enumerate(op.joined):
                for one in of_layer or ():
                    of = self._waiting if one.delayed else self._members
                    of[layer, one.row].setdefault(one.block, []).append(self._newest(layer))
        return answer

    def _clustered(self, op: Cluster, row: int, labels: np.ndarray) -> None:
        members, end = self._members[op.layer, row], self._newest(op.layer) + 1
        tokens = np.arange(end - len(labels), end)
        if op.whole:
            # Cluster by cluster, as they were at hand, and the newest.
            tokens = np.array([*(token for block in sorted(members) for token in members[block]), end - 1])
            members.clear()
        for block in range(op.clusters):
            members[op.first + block] = tokens[labels == block].tolist()

    def _newest(self, layer: int) -> int:
        return sum(one.shape[2] for one in self._keys[layer]) - 1


def of_clusters(layout: Any, upkeep: Any = None, selected: int = 16, **others: Any) -> Roles:
    upkeep = upkeep or AdaptiveClusters(threshold=1.0, buffer_tokens=2)
    return Roles(selector=Centroids(selected_tokens=selected, per_head=True), layout=layout, upkeep=upkeep, **others)


PAGES: dict[str, Any] = {"page_buffers": 2, "page_bytes": 256, "hot_steps": 4}
FEW = {"group_tokens": 4, "selected_tokens": 16}
WAYS: dict[str, tuple[Roles, dict[str, Any]]] = {
    "groups, reused": (roles_of("kvswap", **FEW), {}),
    "groups, of a selection one and three": (roles_of("kvswap", slots=1, **FEW), {}),
    "groups, three reused and one passes": (roles_of("kvswap", slots=3, **FEW), {}),
    "groups of each head": (roles_of("kvswap", per_head=True, **FEW), {}),
    "groups, of the host, moved anew": (roles_of("kvswap", placement="host", reuse=False, **FEW), {}),
    "groups, in slots of the processor's own": (roles_of("quest", reuse=True, **FEW), {}),
    "entries": (roles_of("infinigen", selected_tokens=10), {}),
    "values alone": (roles_of("shadowkv", **FEW), {}),
    "all": (roles_of("flexgen", group_tokens=4), {}),
    "one choice for all layers, on storage": (roles_of("specontext", selected_tokens=12, placement="storage"), {}),
    "one choice, layers leave": (roles_of("specontext", selected_tokens=12), {"free_bytes": 2 * 64 * TOKEN_BYTES}),
    "pools that are outgrown": (of_clusters(ClusterPools(group_tokens=3, spare=1)), {}),
    "pools with pages": (of_clusters(ClusterPools(group_tokens=3, spare=1, **PAGES)), {}),
    "pools, never cut": (of_clusters(ClusterPools(group_tokens=3, spare=1), StaticClusters(), selected=6), {}),
    "pools, made anew": (of_clusters(ClusterPools(group_tokens=3), GlobalClusters(every_tokens=5), selected=8), {}),
    "pairs": (of_clusters(DualHeads(group_tokens=3, most_tokens=3), residency=WholeCache(cache_share=0.2)), {}),
    "pairs, never cut": (of_clusters(DualHeads(group_tokens=3, most_tokens=2), StaticClusters(), selected=6), {}),
    "pairs of the host, kept": (
        of_clusters(
            DualHeads(group_tokens=3, **PAGES), placement=OneTier("host"), residency=VirtualCache(cache_share=0.4)
        ),
        {},
    ),
    "one behind the other": (of_clusters(ClusterByCluster(group_tokens=3, references=8), StaticClusters()), {}),
    "as they came": (
        of_clusters(SequenceOrdered(group_tokens=3), LocalClusters(window_tokens=4, window_clusters=2)),
        {},
    ),
}


@pytest.fixture(scope="module")
def model() -> Any:
    from small_decoding import small_model

    return small_model()


@pytest.mark.parametrize("way", WAYS)
def test_attention_is_given_the_tokens_that_were_wanted(model: Any, tmp_path: Path, way: str) -> None:
    roles, sizes = WAYS[way]
    run = NumberedDecoding(model, tmp_path, roles, context=58, batch=2, output=14, **sizes)
    run.run()
    assert run.wrong == []
    # Of 13 steps, every layer, sequence and head.
    assert run.compared == 13 * 3 * 2 * 2
