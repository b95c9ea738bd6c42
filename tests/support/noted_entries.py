"""What a real run computes: keys and values of every token, taken where the blocks are given them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvferry.disk.kv_file import KvFile

# By layer, keys and values float32[2, sequences, KV heads, tokens, head_dim].
Computed = list[np.ndarray]


@contextmanager
def noted_entries() -> Iterator[list[list[Any]]]:
    """By layer, what runs within the block are given: tensors [2, sequences, KV heads, tokens, head_dim]."""
    import torch

    from kvferry.backends.live.decoding.blocks import StoredBlocks
    from kvferry.backends.live.decoding.cluster_blocks import ClusterBlocks

    noted: list[list[Any]] = []
    really = [(kind, kind.prefilled, kind.put) for kind in (StoredBlocks, ClusterBlocks)]

    def note(layer: int, keys: Any, values: Any) -> None:
        noted.extend([] for _ in range(layer + 1 - len(noted)))
        noted[layer].append(torch.stack([keys, values]).float())

    def wrapped(kind: Any, prefilled: Any, put: Any) -> None:
        def noting_prefilled(self: Any, layer: int, keys: Any, values: Any, order: Any) -> Any:
            note(layer, keys, values)
            return prefilled(self, layer, keys, values, order)

        def noting_put(self: Any, layer: int, keys: Any, values: Any) -> None:
            note(layer, keys, values)
            put(self, layer, keys, values)

        kind.prefilled, kind.put = noting_prefilled, noting_put

    for one in really:
        wrapped(*one)
    try:
        yield noted
    finally:
        for kind, prefilled, put in really:
            kind.prefilled, kind.put = prefilled, put  # type: ignore[method-assign]


def whole(noted: list[list[Any]]) -> Computed:
    import torch

    return [torch.cat(of_layer, dim=3).numpy() for of_layer in noted]


def check_entries(found: KvFile, computed: Computed) -> None:
    """Every entry up to the last finished step, byte for byte; each in one cluster at most, and in its row's."""
    header, places = found.header, set[tuple[int, int, int]]()
    for layer, of_layer in enumerate(computed):
        assert of_layer.shape[3] >= found.tokens
        for row in range(header.layer_rows):
            sequence, head = divmod(row, header.heads)
            heads = slice(head * header.row_heads, (head + 1) * header.row_heads)
            of_row = found.entries(layer, row)
            wanted = of_layer[:, sequence, heads, : found.tokens].swapaxes(1, 2)
            assert of_row.keys.tobytes() == np.ascontiguousarray(wanted[0]).tobytes()
            assert of_row.values.tobytes() == np.ascontiguousarray(wanted[1]).tobytes()
            members = [token for part in found.clusters(layer, row).values() for token in part.tolist()]
            assert sorted(members) == np.flatnonzero(of_row.clusters >= 0).tolist()
            places |= {(layer, row, token) for token in members}
    nowhere = header.rows * found.tokens - len(places)
    assert not header.clusters or nowhere == found.summary()["entries_in_no_cluster"]
