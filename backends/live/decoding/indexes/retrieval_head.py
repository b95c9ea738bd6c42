"""SpeContext's index: the keys of a distilled head, by which all layers' KV is chosen before a pass (Section 4.3)."""

from typing import Self

import torch

from kvferry.backends.live.decoding.indexes.index import BlockIndex, by_kv_head
from kvferry.model.decoder import Decoder
from kvferry.model.retrieval_head import RetrievalHead, load_head, random_head
from kvferry.policies.decode.index import IndexSpec

_PART_TOKENS = 4096


class RetrievalHeadKeys(BlockIndex):
    """Keys [sequences, KV heads, tokens, head_dim] that the head itself makes of token ids, for one choice that serves
    all layers. A KV block has the score of its best token; query heads that share a KV head agree on the largest share
    of their attention.
    """

    def __init__(
        self, head: RetrievalHead, decoder: Decoder, spec: IndexSpec, *, sequences: int, room_tokens: int
    ) -> None:
        super().__init__(spec, layers=1, head_dim=head.head_dim, room_tokens=room_tokens)
        self._head = head
        # The token under way has a key, too.
        self._rotary = tuple(side.float() for side in decoder.rotary(room_tokens + 1))
        shape = (sequences, head.kv_heads, room_tokens + 1, head.head_dim)
        self._keys = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)
        self._ids = torch.zeros((sequences, 0), dtype=torch.long, device=decoder.device)
        # Tokens whose keys are there.
        self._known = 0

    @classmethod
    def made(cls, decoder: Decoder, sample: torch.Tensor, spec: IndexSpec, *, sequences: int, room_tokens: int) -> Self:
        """Returns the head that lies beside the model's weights, or one of random weights for a model of such. The
        sample is not needed."""
        model = decoder.model
        head = load_head(model) if model.config.name_or_path else random_head(model, seed=0)
        return cls(head, decoder, spec, sequences=sequences, room_tokens=room_tokens)

    @property
    def n_bytes(self) -> int:
        """Returns the bytes of its K cache and its weights; the embedding is the model's."""
        return self._keys.nbytes + self._head.parameter_count * self._keys.itemsize

    def blocks(self, layer: int) -> int:
        return super().blocks(0)

    def clear(self) -> None:
        super().clear()
        self._ids, self._known = self._ids[:, :0], 0

    def read(self, ids: torch.Tensor) -> None:
        self._ids = torch.cat([self._ids, ids.to(self._ids.device)], dim=1)

    def prefill(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        if layer == 0:
            self._take_in()
        return super().prefill(layer, queries, keys)

    def append(self, layer: int, keys: torch.Tensor) -> None:
        """Further KV blocks can be chosen, from the time on when all layers have them."""
        if layer == 0:
            super().append(layer, keys)

    def _keep(self, layer: int, block: int, keys: torch.Tensor) -> None:
        """The head's own keys are there already."""

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        """Whatever the layer, and its queries."""
        return self.shares(heads)

    def shares(self, heads: int) -> torch.Tensor:
        """Returns float32[sequences, heads, blocks] of the attention of the token that was read last, by its own
        query."""
        own = by_kv_head(self._take_in(), self._head.kv_heads)
        keys = self._keys[:, :, : self.blocks(0) * self.spec.block_tokens]
        # A part at a time as float32: of all keys, that would be gigabytes.
        scores = torch.cat([own @ part.float().mT for part in keys.split(_PART_TOKENS, dim=2)], dim=-1)
        return self._best_token(self._agreed(scores.flatten(1, 2), heads))

    def _take_in(self) -> torch.Tensor:
        """Make keys of what was read since, and the query of the last token, [sequences, query heads, 1, head_dim]."""
        n = self._ids.shape[1]
        new = max(1, n - self._known)
        cos, sin = (side[:, :, n - new : n] for side in self._rotary)
        queries, keys = self._head.projected(self._head.inputs(self._ids, new), (cos, sin))
        self._keys[:, :, n - new : n] = keys.to(self._keys.dtype)
        self._known = n
        return queries[:, :, -1:]
