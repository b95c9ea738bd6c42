"""One turn on a real model: KV of its prompt comes from anywhere, block by block; the rest is read, then it answers."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right
from transformers import PreTrainedModel

from kvferry.model.decoder import Rotary
from kvferry.model.decoders import decoder_of
from kvferry.model.kv import NotReady, SessionKv
from kvferry.model.request_session import step
from kvferry.model.session import Session, new_kv
from kvferry.model.whole_prefill import PrefilledLayer
from kvferry.specs.errors import KvferryError


class TurnSession:
    """`ids`: the prompt; `output`: tokens of the answer. Blocks of `block` tokens are the token chunks of ``session``,
    which has the whole ones in front of the prompt's last token; None: there are none. ``history``: tokens whose KV is
    there, once the prompt is read. `rotary`: of as many positions as there may be. `spare`: KV of a turn that is
    over, whose buffers may be used again.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ids: Sequence[int],
        *,
        block: int,
        output: int,
        rotary: Rotary,
        spare: SessionKv | None = None,
    ) -> None:
        self.ids, self.block, self._rotary = list(ids), block, rotary
        self.decoder = decoder = decoder_of(model, latent=False)
        blocks = (len(ids) - 1) // block
        context = ids[: blocks * block]
        # The answer's last token is read, too, where it completes a block.
        self.kv = kv = new_kv(decoder, [block] * blocks, len(ids) - len(context) + output, spare)
        self.session = Session(model, context, chunk_tokens=block, kv=kv, rotary=rotary) if blocks else None
        self.history: list[int] = []
        # Numbers of blocks that come layer by layer, each before its layer is read.
        self.coming: frozenset[int] = frozenset()
        # Positions that are read with the prompt's end, and their hidden state on its way through the layers.
        self._read = self._hidden = torch.zeros(0)
        self._depth = 0

    @property
    def lacking(self) -> int:
        """Tokens of the prompt whose KV is nowhere."""
        return len(self._positions())

    def put_block(self, number: int, kv: torch.Tensor) -> None:
        """Puts KV [layers, 2, heads, block, head_dim] of a block of the prompt into its place."""
        self.kv.put_whole(number, kv)

    def block_of(self, number: int) -> torch.Tensor:
        """Returns the same of a block of prompt and answer, once it is there."""
        begin, end = number * self.block, (number + 1) * self.block
        if end > len(self.history):
            raise NotReady(f"block {number} ends with token {end:,}, {len(self.history):,} are there")
        return torch.stack([self.kv.keys[:, 0, :, begin:end], self.kv.values[:, 0, :, begin:end]], dim=1)

    def put_layer(self, layer: int, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Puts KV [1, heads, tokens, head_dim] of a layer, at these positions of the prompt, into its place."""
        self.kv.keys[layer].index_copy_(2, positions, keys)
        self.kv.values[layer].index_copy_(2, positions, values)

    def read_layer(self, layer: int, tokens: int) -> PrefilledLayer:
        """Reads what is lacking of the prompt, `tokens` of it, through a layer. Returns the hidden state and the
        queries of these, and KV of the whole prompt."""
        if layer == 0:
            self._read = torch.tensor(self._positions(), device=self.decoder.device)
            if len(self._read) != tokens:
                raise KvferryError(f"{tokens:,} tokens are to be read, and KV of {len(self._read):,} is lacking")
            self._hidden = self.decoder.embed(self.decoder.token_ids([[self.ids[n] for n in self._read.tolist()]]))
        elif layer != self._depth:
            raise KvferryError(f"layer {layer} of a prompt that has passed {self._depth}")
        cos, sin = (side[:, :, self._read] for side in self._rotary)
        keys, values = self.decoder.keys_values(layer, self._hidden, (cos, sin))
        queries = self.decoder.queries(layer, self._hidden, (cos, sin))
        self.put_layer(layer, self._read, keys, values)
        self._hidden = self.decoder.above(layer, self._hidden, self._attended(layer, queries))
        self._depth = layer + 1
        whole = (side[layer][:, :, : len(self.ids)] for side in (self.kv.keys, self.kv.values))
        return PrefilledLayer(self._hidden, queries, *whole)

    def next_token(self) -> int:
        """Returns the token that follows the prompt, all of which has passed the layers."""
        if self._depth != self.decoder.layers:
            raise KvferryError(f"the prompt has passed {self._depth} of {self.decoder.layers} layers")
        self.history = list(self.ids)
        return int(self.decoder.logits(self._hidden[0, -1]).argmax())

    def after(self, token: int) -> int:
        """Reads one more token, and returns the one that follows it."""
        return int(step(self.decoder, self._rotary, [self], [token])[0].argmax())

    def behind(self, answer: Sequence[int]) -> int:
        """Returns what the model says behind the prompt and so much of an answer: only what is not there yet is read,
        and what else was said is forgotten."""
        ids = [*self.ids, *answer]
        most = min(len(ids) - 1, len(self.history))
        kept = next((n for n in range(len(self.ids), most) if self.history[n] != ids[n]), most)
        del self.history[kept:]
        return [self.after(one) for one in ids[kept:]][-1]

    # --- as `step` wants it --------------------------------------------------------------------------------------

    def make_room(self, decoder: object, tokens: int) -> None:
        """Raises KvferryError where an answer becomes longer than there is room for."""
        if len(self.history) + tokens > self.kv.capacity:
            raise KvferryError(f"there is room for {self.kv.capacity:,} tokens, not for {tokens} more")

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As RequestSession does."""
        return self.kv.append(layer, len(self.history), keys, values)

    # --- what they share -----------------------------------------------------------------------------------------

    def _positions(self) -> list[int]:
        """Positions of the prompt without KV: blocks that lack it in some layer, and all behind the last block."""
        chunks, layers = range(len(self.kv.tokens)), range(self.kv.layers)
        there = self.coming | {t for t in chunks if all(self.kv.present(t, l) for l in layers)}
        return [n for n in range(len(self.ids)) if n // self.block not in there]

    def _attended(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        end, begin = len(self.ids), int(self._read[0])
        keys, values = self.kv.keys[layer, :, :, :end], self.kv.values[layer, :, :, :end]
        mask = None
        if begin + len(self._read) < end:
            # Others lie between them.
            mask = torch.arange(end, device=self._read.device) <= self._read[:, None]
        elif begin:
            mask = causal_lower_right(len(self._read), end)
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
