"""Tokens that are skipped: layers that follow others come to lie where they would have by themselves."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.layouts.cluster_by_cluster import ContiguousLayout
from kvferry.layouts.cluster_layout import ClusterLayout, PlacedClusters
from kvferry.layouts.dual_head import DualHeadLayout
from kvferry.layouts.pieces import Pieces
from kvferry.layouts.pools import PoolLayout, Pools
from kvferry.layouts.sequence_order import SequenceLayout
from kvferry.policies.decode.local_clusters import WindowedClusters

KINDS, LAYERS = 2, 5
SIZES: dict[str, Any] = {
    "layers": LAYERS,
    "sequences": 2,
    "blocks": 40,
    "first_blocks": 5,
    "block_tokens": 3,
    "token_bytes": 8,
    "alignment_bytes": 16,
    "row_tokens": 200,
}
LAYOUTS: list[tuple[type[ClusterLayout], dict[str, Any]]] = [
    (PoolLayout, {"spare": 1, "file_spare": 8}),
    (PoolLayout, {"spare": 2, "file_spare": 8, "page_buffers": 2}),
    (DualHeadLayout, {"most_tokens": 4, "file_spare": 8}),
    (DualHeadLayout, {"most_tokens": 2, "file_spare": 8, "page_buffers": 2}),
    (ContiguousLayout, {"extent": "file"}),
    (SequenceLayout, {}),
]
# A kind of layer, a row, a block, and whether it is split, opened, or grows, by how many tokens.
CHANGES = st.lists(
    st.tuples(
        st.integers(0, KINDS - 1), st.integers(0, 1), st.integers(0, 4), st.sampled_from("sog"), st.integers(1, 4)
    ),
    max_size=30,
)


def start(kind: type[ClusterLayout], own: dict[str, Any]) -> PlacedClusters:
    blocks: Any = kind(**{**SIZES, **own}).start()
    for layer in range(LAYERS):
        blocks.filled(layer, np.full((2, 5), 3))
    return blocks  # type: ignore[no-any-return]


def carry_out(blocks: PlacedClusters, layers: list[int], row: int, block: int, what: str, tokens: int) -> None:
    for layer in layers:
        if what == "o":
            blocks.open(layer, row, tokens)
        elif what == "g":
            blocks.append(layer, row, block, tokens)
        elif (size := blocks.tokens(layer, row, block)) > 1:
            leave = min(tokens, size - 1)
            blocks.split(layer, row, block, size - leave, leave, np.arange(size) >= size - leave, beside=(0, 1, 2))


@pytest.mark.parametrize(("kind", "own"), LAYOUTS)
@given(changes=CHANGES)
def test_layers_that_follow_lie_as_if_changed_by_themselves(
    kind: type[ClusterLayout], own: dict[str, Any], changes: list[tuple[int, int, int, str, int]]
) -> None:
    each, ahead = start(kind, own), start(kind, own)
    with ahead.ahead(KINDS):
        for of, *change in changes:
            carry_out(each, list(range(of, LAYERS, KINDS)), *change)
            carry_out(ahead, [of], *change)
    ahead.check()
    assert ahead.counted.new_bytes == ahead.counted.moved_bytes == ahead.counted.written_bytes == 0
    assert (ahead.all_tokens == each.all_tokens).all() and ahead.taken_bytes == each.taken_bytes
    # And from there on.
    for of, *change in [*changes, (0, 0, 1, "s", 1), (1, 1, 0, "g", 2)]:
        for blocks in (each, ahead):
            carry_out(blocks, list(range(of, LAYERS, KINDS)), *change)
    for layer in range(LAYERS):
        one, other = each.whole(layer), ahead.whole(layer)
        for column in ("rows", "blocks", "firsts", "tokens", "offsets", "down"):
            assert getattr(one, column).tolist() == getattr(other, column).tolist(), column


class AlikeKeys:
    """Stands for keys of `kinds` different layers. Every layer groups a window into the same clusters of equal size."""

    def __init__(self, kinds: int) -> None:
        self.kinds = kinds

    def go_on(self) -> None:
        pass

    def group(self, tokens: int, clusters: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.tile(np.arange(tokens) % clusters, (2 * self.kinds, 1))
        return np.full((2 * self.kinds, clusters), tokens // clusters), labels


@pytest.mark.parametrize(("kind", "own"), LAYOUTS)
def test_windows_lie_layer_by_layer_however_many_layers_are_told_apart(
    kind: type[ClusterLayout], own: dict[str, Any]
) -> None:
    """As decoding puts them: two windows of eight tokens, in four clusters each."""
    told_apart, alike = start(kind, own), start(kind, own)
    for blocks, kinds in ((told_apart, LAYERS), (alike, KINDS)):
        keys: Any = AlikeKeys(kinds)
        WindowedClusters(blocks, 8, 4).skip(20, 15, keys, lambda tokens: tokens)
    for layer in range(LAYERS):
        one, other = told_apart.whole(layer), alike.whole(layer)
        for column in ("rows", "blocks", "firsts", "tokens", "offsets", "down"):
            assert getattr(one, column).tolist() == getattr(other, column).tolist(), column


class CountingBlocks(Pools):
    """A plugin's: counts how often blocks of a row have grown."""

    __module__ = "plugin"

    def __init__(self, like: PoolLayout) -> None:
        super().__init__(like)
        self.grown = np.zeros(like.all_rows, np.int64)

    def append(self, layer: int, row: int, block: int, tokens: int = 1, here: bool = True) -> Pieces:
        self.grown[layer * 2 + row] += 1
        return super().append(layer, row, block, tokens, here)


def test_what_a_plugin_counts_by_row_follows() -> None:
    blocks = CountingBlocks(PoolLayout(**{**SIZES, "spare": 1, "file_spare": 8}))
    for layer in range(LAYERS):
        blocks.filled(layer, np.full((2, 5), 3))
    with blocks.ahead(KINDS):
        blocks.append(0, 1, 0)
        blocks.append(1, 0, 0)
    assert blocks.grown.tolist() == [0, 1, 1, 0] * 2 + [0, 1]
