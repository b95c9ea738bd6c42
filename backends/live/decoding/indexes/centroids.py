"""Centroids of clusters of like keys, kept up to date as keys join and clusters split (DynaKV 4)."""

from typing import Self

import torch

from kvferry.backends.live.decoding.indexes.index import Index, by_kv_head, principal_directions
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.pools import even_sizes

# Of a split, after the first guess.
_ROUNDS = 4


class Centroids(Index):
    """Clusters of every row: a sequence, or a part of its KV heads that chooses for itself.

    Prompts are cut into clusters of even sizes, as the layout has them, by halving again and again: each half is nearer
    to its own mean than to the other's, as in 2-means of a given size. A cluster scores by its centroid's product with
    the query. Left out: k-means over all clusters at once, variances.
    """

    def __init__(
        self, spec: IndexSpec, *, layers: int, kv_heads: int, head_dim: int, sequences: int, room_tokens: int
    ) -> None:
        super().__init__(spec, layers=layers, head_dim=head_dim)
        self._kv_heads = kv_heads
        rows, width = sequences * spec.heads, kv_heads // spec.heads * head_dim
        blocks = room_tokens // spec.block_tokens
        self._means = torch.zeros((layers, rows, blocks, width))
        # Keys of each cluster; 0: there is none.
        self._sizes = torch.zeros((layers, rows, blocks), dtype=torch.long)

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        """The sample is not needed."""
        return cls(
            spec,
            layers=decoder.layers,
            kv_heads=decoder.heads,
            head_dim=decoder.head_dim,
            sequences=sequences,
            room_tokens=room_tokens,
        )

    @property
    def n_bytes(self) -> int:
        """Of the clusters there are: memory for those to come is reserved, and taken when they come."""
        return int((self._sizes > 0).sum()) * self._means.shape[-1] * self._means.itemsize

    def blocks(self, layer: int) -> int:
        """Clusters of the row that has the most: others answer with some that are not there, behind those that are."""
        return int((self._sizes[layer] > 0).sum(-1).max())

    def sizes(self, layer: int, row: int) -> list[int]:
        """Keys of each cluster of a row."""
        of_row = self._sizes[layer, row]
        return [int(n) for n in of_row[of_row > 0]]

    def centroids(self, layer: int, row: int) -> torch.Tensor:
        """float32[clusters, numbers of a row's keys]"""
        return self._means[layer, row, self._sizes[layer, row] > 0]

    def prefill(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Cut the prompts into clusters: the tokens of each row int64[rows, tokens], cluster by cluster."""
        by_row = self._by_row(keys)
        sizes = even_sizes(by_row.shape[1], by_row.shape[1] // self.spec.block_tokens).tolist()
        order = clustered(by_row, sizes)
        for block, members in enumerate(order.split(sizes, dim=1)):
            of_block = by_row.gather(1, members[..., None].expand(-1, -1, by_row.shape[2]))
            self._means[layer, :, block] = of_block.mean(1)
            self._sizes[layer, :, block] = sizes[block]
        return order

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        means = self._means[layer].unflatten(0, (-1, self.spec.heads))  # sequences, heads, clusters, width
        by_head = by_kv_head(queries, self._kv_heads).float().cpu()
        shares = means.unflatten(-1, (self._kv_heads // self.spec.heads, -1)).transpose(2, 3).flatten(1, 2)
        scores = (by_head @ shares.mT).flatten(1, 2)  # sequences, query heads, clusters
        there = (self._sizes[layer] > 0).unflatten(0, (-1, self.spec.heads))
        of_query_heads = there.repeat_interleave(scores.shape[1] // self.spec.heads, 1)
        return self._agreed(scores.masked_fill(~of_query_heads, -torch.inf), heads).masked_fill(~there, -torch.inf)

    def nearest(self, layer: int, keys: torch.Tensor) -> torch.Tensor:
        """int32[sequences, heads]: the clusters whose centroids are nearest to keys [sequences, KV heads, 1, head_dim]
        of one token."""
        apart = torch.cdist(self._by_row(keys), self._means[layer])[:, 0]
        nearest = apart.masked_fill(self._sizes[layer] == 0, torch.inf).argmin(-1)
        return nearest.unflatten(0, (-1, self.spec.heads)).to(torch.int32)

    def join(self, layer: int, row: int, block: int, key: torch.Tensor) -> None:
        """A key joins a cluster, or opens one."""
        self._sizes[layer, row, block] += 1
        mean = self._means[layer, row, block]
        mean += (key.float().cpu() - mean) / self._sizes[layer, row, block]

    def split(self, layer: int, row: int, block: int, new: int, keys: torch.Tensor, leaving: int) -> torch.Tensor:
        """So many of a cluster's keys [keys, numbers] leave for a new one. Returns their order: those that stay
        first."""
        found = keys.float().cpu()
        order = halved(found[None], len(found) - leaving)[0]
        for place, members in ((block, order[: len(order) - leaving]), (new, order[len(order) - leaving :])):
            self._means[layer, row, place] = found[members].mean(0)
            self._sizes[layer, row, place] = len(members)
        return order

    def _by_row(self, keys: torch.Tensor) -> torch.Tensor:
        """float32[rows, tokens, numbers of a row's keys] of keys [sequences, KV heads, tokens, head_dim]."""
        by_part = keys.float().cpu().unflatten(1, (self.spec.heads, -1))
        return by_part.transpose(2, 3).flatten(3).flatten(0, 1)


def clustered(vectors: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Vectors [rows, n, width] as int64[rows, n], cluster after cluster of these sizes."""
    if len(sizes) == 1:
        return torch.arange(vectors.shape[1]).expand(vectors.shape[:2])
    half, first = len(sizes) // 2, sum(sizes[: len(sizes) // 2])
    order = halved(vectors, first)
    parts = []
    for part, of_part in ((order[:, :first], sizes[:half]), (order[:, first:], sizes[half:])):
        inner = clustered(vectors.gather(1, part[..., None].expand(-1, -1, vectors.shape[2])), of_part)
        parts.append(part.gather(1, inner))
    return torch.cat(parts, dim=1)


def halved(vectors: torch.Tensor, first: int) -> torch.Tensor:
    """The order int64[rows, n] of vectors [rows, n, width], of which the `first` are one half and the rest the other:
    at first by their place along the direction in which they differ most, from either end of it, then by the difference
    of their distances to both means, which for given means is the best cut of these sizes. Of both ends, the better."""
    centred = vectors - vectors.mean(1, keepdim=True)
    along = (centred.double() @ principal_directions(centred)[..., :1])[..., 0]
    ends = [_settled(vectors, side.argsort(dim=1, stable=True), first) for side in (along, -along)]
    better = _spread(vectors, ends[0], first) <= _spread(vectors, ends[1], first)
    return torch.where(better[:, None], *ends)


def _settled(vectors: torch.Tensor, order: torch.Tensor, first: int) -> torch.Tensor:
    for _ in range(_ROUNDS):
        nearer, farther = (part.mean(1, keepdim=True) for part in _parts(vectors, order, first))
        difference = (vectors - nearer).square().sum(-1) - (vectors - farther).square().sum(-1)
        order = difference.argsort(dim=1, stable=True)
    return order


def _spread(vectors: torch.Tensor, order: torch.Tensor, first: int) -> torch.Tensor:
    """[rows]: squared distances to the mean of the own half."""
    parts = _parts(vectors, order, first)
    return sum((part - part.mean(1, keepdim=True)).square().sum((1, 2)) for part in parts)


def _parts(vectors: torch.Tensor, order: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    ordered = vectors.gather(1, order[..., None].expand(-1, -1, vectors.shape[2]))
    return ordered[:, :first], ordered[:, first:]
