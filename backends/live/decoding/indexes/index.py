"""The base of every index, and how query heads that choose together agree on scores."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch

from kvferry.model.decoder import Decoder
from kvferry.model.whole_prefill import PrefilledLayer, prefill_layer
from kvferry.policies.decode.head_choice import agreed
from kvferry.policies.decode.index import IndexSpec


class Index(ABC):
    """Scores KV blocks of a lock-step batch from what it keeps of their keys.

    Queries are [sequences, query heads, tokens, head_dim], keys [sequences, KV heads, tokens, head_dim], both with
    their rotary embedding.
    """

    def __init__(self, spec: IndexSpec, *, layers: int, head_dim: int) -> None:
        self.spec = spec
        self._scale = head_dim**-0.5

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Returns what the index takes in memory."""

    @abstractmethod
    def blocks(self, layer: int) -> int:
        """Returns how many KV blocks of each row can be chosen from."""

    def read(self, ids: torch.Tensor) -> None:  # noqa: B027
        """Take note of the token ids int[sequences, tokens] that the model reads next: the prompts, then every token
        that was said. Most indexes are made of the model's keys, and need none."""

    @abstractmethod
    def prefill(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        """Take in what the prompts leave in a layer: keys of whole KV blocks, and the queries of all tokens. Returns
        the tokens of each row int64[rows, tokens], KV block by KV block; None: blocks are of consecutive tokens."""

    @abstractmethod
    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        """Returns float32[sequences, heads, blocks] for the queries of one token; the more, the better. `heads` parts
        of the KV heads choose for themselves."""

    @abstractmethod
    def clear(self) -> None:
        """Forgets the prompts and all that came behind them: others begin. What was learned offline stays."""

    def attended(self, layer: int, ids: np.ndarray, queries: torch.Tensor, keys: torch.Tensor) -> None:  # noqa: B027
        """Learn that attention of queries [sequences, KV heads, query heads of each, head_dim] took in the KV blocks
        int[rows, k], whose `keys` [sequences, KV heads, tokens, head_dim] come before those of other tokens. Most
        indexes need not know."""

    def _agreed(self, scores: torch.Tensor, heads: int) -> torch.Tensor:
        found: torch.Tensor = agreed(scores, heads, self.spec.scores, self._scale, torch.softmax, torch.amax)
        return found


class BlockIndex(Index):
    """An Index of blocks of consecutive tokens, filled from the front: keys come in whole KV blocks. ``room_tokens``
    per sequence is the most that ever come."""

    def __init__(self, spec: IndexSpec, *, layers: int, head_dim: int, room_tokens: int) -> None:
        super().__init__(spec, layers=layers, head_dim=head_dim)
        self.room_blocks = room_tokens // spec.block_tokens
        self.room_tokens = self.room_blocks * spec.block_tokens
        self._blocks = [0] * layers

    def clear(self) -> None:
        self._blocks = [0] * len(self._blocks)

    def blocks(self, layer: int) -> int:
        return self._blocks[layer]

    def prefill(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
        self.append(layer, keys)
        return None

    def append(self, layer: int, keys: torch.Tensor) -> None:
        """Take in keys of further KV blocks."""
        added = keys.shape[2] // self.spec.block_tokens
        self._keep(layer, self._blocks[layer], keys)
        self._blocks[layer] += added

    @abstractmethod
    def _keep(self, layer: int, block: int, keys: torch.Tensor) -> None:
        """Keep what scoring needs of keys whose first KV block is `block`."""

    def _best_token(self, scores: torch.Tensor) -> torch.Tensor:
        """A KV block's score is that of its best token."""
        return scores.unflatten(-1, (-1, self.spec.block_tokens)).amax(-1)


def by_kv_head(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Queries [sequences, query heads, 1, head_dim] as [sequences, KV heads, query heads of each, head_dim]."""
    return queries[:, :, 0].unflatten(1, (kv_heads, -1))


@torch.no_grad()  # type: ignore[untyped-decorator]
def sampled(decoder: Decoder, sample: torch.Tensor) -> Iterator[PrefilledLayer]:
    """Queries, keys and values that a sample, token ids [sequences, tokens] of any text, leaves in each layer."""
    rotary, hidden = decoder.rotary(sample.shape[1]), decoder.embed(sample)
    for layer in range(decoder.layers):
        prefilled = prefill_layer(decoder, layer, hidden, rotary)
        hidden = prefilled.hidden
        yield prefilled


def principal_directions(vectors: torch.Tensor) -> torch.Tensor:
    """Returns right singular vectors float64[..., width, width] of vectors [..., n, width], one per column, the
    strongest first."""
    tall = vectors.double()
    # Eigenvectors of the small square, ascending, are the singular vectors of the tall matrix.
    return torch.linalg.eigh(tall.mT @ tall).eigenvectors.flip(-1)
