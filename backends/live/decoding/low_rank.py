"""The compressed key cache that stays in memory, and what it tells of the groups worth reading (KVSwap 3.2, 3.3)."""

import torch
from transformers import PreTrainedModel

from kvferry.backends.live.model.decoder import Decoder
from kvferry.backends.live.model.whole_prefill import prefill_layer


@torch.no_grad()
def low_rank_adapters(model: PreTrainedModel, sample: torch.Tensor, rank: int) -> torch.Tensor:
    """float[layers, KV heads, head_dim, rank]: what keys of all heads, side by side, are projected with.

    The top right singular vectors of the keys that `sample` [sequences, tokens], token ids of any text, leaves in
    each layer, with their rotary embedding as a cache has them. Made offline: other texts' keys do as well.
    """
    decoder = Decoder(model)
    rotary, hidden = decoder.rotary(sample.shape[1]), decoder.embed(sample)
    adapters = []
    for layer in range(decoder.layers):
        hidden, keys, _ = prefill_layer(decoder, layer, hidden, rotary)
        flat = keys.transpose(1, 2).flatten(2).flatten(0, 1).double()
        # Eigenvectors of the small square, ascending, are the singular vectors of the tall matrix.
        vectors = torch.linalg.eigh(flat.T @ flat).eigenvectors
        top = vectors.flip(1)[:, :rank]
        adapters.append(top.unflatten(0, (decoder.heads, decoder.head_dim)).to(decoder.dtype))
    return torch.stack(adapters)


class LowRankKeys:
    """Keys of whole groups of a lock-step batch, [layers, sequences, room, rank], filled from the front.

    `by_head`: a head's scores are softmaxed over the tokens before heads are summed; else they are summed as they are,
    as Section 3.3 has it. `room` is in tokens.
    """

    def __init__(
        self, adapters: torch.Tensor, *, sequences: int, room: int, group_tokens: int, by_head: bool = False
    ) -> None:
        self.adapters, self._group_tokens, self._by_head = adapters, group_tokens, by_head
        layers, _, head_dim, rank = adapters.shape
        self._scale = head_dim**-0.5
        self._keys = torch.zeros((layers, sequences, room, rank), dtype=adapters.dtype, device=adapters.device)
        self._tokens = [0] * layers

    @property
    def n_bytes(self) -> int:
        return self._keys.nbytes

    def groups(self, layer: int) -> int:
        return self._tokens[layer] // self._group_tokens

    def append(self, layer: int, keys: torch.Tensor) -> None:
        """Keys of whole groups, [sequences, KV heads, tokens, head_dim]."""
        begin = self._tokens[layer]
        end = self._tokens[layer] = begin + keys.shape[2]
        self._keys[layer, :, begin:end] = torch.einsum("bhtd,hdr->btr", keys, self.adapters[layer])

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        """float[sequences, heads, groups]: the largest score of a group's tokens, for an approximate query
        [sequences, query heads, 1, head_dim].

        A token's score is summed over the query heads, of each of `heads` parts that choose for themselves.
        """
        by_kv_head = queries[:, :, 0].unflatten(1, (self.adapters.shape[1], -1))
        low = torch.einsum("bkqd,kdr->bkqr", by_kv_head, self.adapters[layer])
        by_choice = low.unflatten(1, (heads, -1)).flatten(2, 3)
        if not self._by_head:
            # The sum over heads of products with the same keys is the product with the sum.
            by_choice = by_choice.sum(2, keepdim=True)
        # Small products of 16-bit numbers are slow on CPUs.
        keys = self._keys[layer, :, : self._tokens[layer]].float()
        scores = torch.einsum("bcqr,btr->bcqt", by_choice.float(), keys)
        if self._by_head:
            scores = (scores * self._scale).softmax(-1)
        return scores.sum(2).unflatten(-1, (-1, self._group_tokens)).amax(-1)
