"""Every kind of index that a real machine has, by the name that an IndexSpec calls it."""

from typing import Protocol

import torch

from kvferry.backends.live.decoding.indexes.array_index import ArrayIndex
from kvferry.backends.live.decoding.indexes.block_vectors import Landmarks, PageBounds
from kvferry.backends.live.decoding.indexes.centroids import Centroids
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.indexes.low_rank_keys import LowRankKeys
from kvferry.backends.live.decoding.indexes.projected_keys import PartialKeys, PrincipalKeys
from kvferry.backends.live.decoding.indexes.retrieval_head import RetrievalHeadKeys
from kvferry.model.decoder import Decoder
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.key_index import KEY_INDEXES
from kvferry.specs.errors import pick


class MakeIndex(Protocol):
    def __call__(
        self, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int
    ) -> Index:
        """Returns an empty index for a model; `sample` [1, tokens] are token ids of other text, to learn directions
        from."""
        ...


INDEXES: dict[str, MakeIndex] = {
    "low-rank-keys": LowRankKeys.made,
    "partial-keys": PartialKeys.made,
    "principal-keys": PrincipalKeys.made,
    "landmarks": Landmarks.made,
    "page-bounds": PageBounds.made,
    "centroids": Centroids.made,
    # The mean key of a token is its key.
    "keys": Landmarks.made,
    "retrieval-head": RetrievalHeadKeys.made,
}


def index_maker(kind: str) -> MakeIndex:
    """Returns what makes an index of this kind, a plugin's too. Raises InputError for an unknown one."""
    return pick("index", {**dict.fromkeys(KEY_INDEXES, ArrayIndex.made), **INDEXES}, kind)
