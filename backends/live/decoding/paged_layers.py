"""Runs the layers of a model for sequences whose KV is in memory, in pages: any of them at a time, of any length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.answers import Answers, Listener, unheard
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.machine.answers import Selection
from kvferry.machine.handles import Batch
from kvferry.machine.ops import DecodeStep, Op, OutputHead, PrefillLayer
from kvferry.model.decoders import decoder_of
from kvferry.model.whole_prefill import prefill_layer
from kvferry.policies.decode.pages import PAGE_TOKENS, PageTable, pages_of
from kvferry.specs.errors import KvferryError


class Pages(PageTable):
    """Holds a pool of pages, each of ``PAGE_TOKENS`` tokens of all layers, and what lies in them. `latent_rank`:
    values are that many first numbers of keys, and do not lie there by themselves."""

    def __init__(
        self,
        pages: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        latent_rank: int | None = None,
    ) -> None:
        super().__init__(pages)
        self._latent_rank = latent_rank
        shape = (layers, pages, 2 if latent_rank is None else 1, kv_heads, PAGE_TOKENS, head_dim)
        self._pool = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def peak_bytes(self) -> int:
        """Returns the most that taken pages ever had."""
        return self._pool[:, : self.peak_pages].nbytes

    def put(self, layer: int, sequence: int, position: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """KV of a layer from a position on, each [KV heads, tokens, head_dim]; there is room for it."""
        pool, table, tokens = self._pool[layer], self.of(sequence), keys.shape[1]
        done = 0
        while done < tokens:
            page, inside = divmod(position + done, PAGE_TOKENS)
            n = min(PAGE_TOKENS - inside, tokens - done)
            for side, one in enumerate((keys, values)[: pool.shape[1]]):
                pool[table[page], side, :, inside : inside + n] = one[:, done : done + n]
            done += n

    def kv(self, layer: int, sequence: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and values of a sequence's first tokens, each [KV heads, tokens, head_dim]."""
        table = torch.tensor(self.of(sequence)[: pages_of(tokens)], device=self._pool.device)
        sides = self._pool[layer].index_select(0, table).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :tokens]
        return sides[0], sides[1] if self._latent_rank is None else sides[0, ..., : self._latent_rank]


@dataclass
class Prefilling:
    """A prompt on its way through the layers: its hidden state [1, tokens, hidden], and how many it has passed."""

    hidden: torch.Tensor
    depth: int = 0


class PagedLayers(RegisteredOps):
    """Prompts of any length; each op says which of them it is for (`Batch`), by default for all.

    One thread calls `run`.

    A prompt has pages for all its tokens from when its first layer is prefilled, and gets more as it decodes, until an
    op releases it. `output`: tokens of an answer at most. `pages`: of the pool.
    """

    about = "decoding with all KV in memory"

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        output: int,
        pages: int,
        follow: Sequence[Sequence[int]] | None = None,
        listen: Listener = unheard,
    ) -> None:
        self.decoder = decoder = decoder_of(model)
        self._prompts = [decoder.token_ids([prompt]) for prompt in prompts]
        self._rotary = decoder.rotary(max(map(len, prompts)) + output)
        self.pages = Pages(
            pages,
            layers=decoder.layers,
            kv_heads=decoder.heads,
            head_dim=decoder.head_dim,
            dtype=decoder.dtype,
            device=decoder.device,
            latent_rank=decoder.latent_rank,
        )
        self._answers = Answers(len(prompts), follow, listen)
        self._prefilling: dict[int, Prefilling] = {}
        # Tokens of each sequence whose KV is there.
        self._cached: dict[int, int] = {}
        # Nothing is chosen: everything is attended.
        self.chosen: list[Selection] = []

    @property
    def answers(self) -> list[list[int]]:
        """Returns the token ids said so far, by sequence."""
        return self._answers.tokens

    @property
    def metadata_bytes(self) -> int:
        return 0

    @property
    def buffer_bytes(self) -> int:
        """Returns the most that pages in use ever took."""
        return self.pages.peak_bytes

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op. Raises InputError for ops that it does not have, KvferryError for one out of turn."""
        return self.method_of(op)(op)

    # --- ops -----------------------------------------------------------------------------------------------------

    @runs(PrefillLayer)
    def _prefill_layer(self, op: PrefillLayer) -> None:
        for sequence in self._sequences(op):
            self._prefill(sequence, op.layer)

    @runs(OutputHead)
    def _say_first(self, op: OutputHead) -> None:
        sequences, last = self._sequences(op), []
        for sequence in sequences:
            passed = self._prefilling.pop(sequence, Prefilling(torch.empty(0)))
            if passed.depth != self.decoder.layers:
                raise KvferryError(
                    f"the hidden state of sequence {sequence} has passed {passed.depth} of {self.decoder.layers} layers"
                )
            last.append(passed.hidden[0, -1])
            self._cached[sequence] = passed.hidden.shape[1]
        self._answers.say(self.decoder.logits(torch.stack(last)), sequences)

    @runs(DecodeStep)
    def _step(self, op: DecodeStep) -> None:
        """One more token of each, from the one that it said last."""
        sequences = self._sequences(op)
        decoder, pages = self.decoder, self.pages
        for sequence in sequences:
            if sequence not in self._cached:
                raise KvferryError(f"sequence {sequence} cannot decode: its prompt is not there")
            pages.make_room(sequence, self._cached[sequence] + 1)
        positions = [self._cached[sequence] for sequence in sequences]
        said = torch.tensor([self.answers[sequence][-1:] for sequence in sequences], device=decoder.device)
        cos, sin = (side[0, 0, positions][:, None, None] for side in self._rotary)
        hidden = decoder.embed(said)
        for layer in range(decoder.layers):
            keys, values = decoder.keys_values(layer, hidden, (cos, sin))
            queries = decoder.queries(layer, hidden, (cos, sin))
            attended = []
            for n, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
                pages.put(layer, sequence, position, keys[n], values[n])
                cached = pages.kv(layer, sequence, position + 1)
                # Query heads that share a key head are the queries of one.
                by_kv_head = queries[n, :, 0].unflatten(0, (decoder.heads, -1))
                attended.append(F.scaled_dot_product_attention(by_kv_head, *cached).flatten(0, 1)[:, None])
            hidden = decoder.above(layer, hidden, torch.stack(attended))
        for sequence in sequences:
            self._cached[sequence] += 1
        self._answers.say(decoder.logits(hidden[:, -1]), sequences)

    # --- what they share -----------------------------------------------------------------------------------------

    def _sequences(self, op: PrefillLayer | OutputHead | DecodeStep) -> Sequence[int]:
        """Returns the sequences that an op is for, and frees the KV of the ones that it releases."""
        of = op.of or Batch(tuple(range(len(self._prompts))))
        if op.batch != len(of.sequences):
            raise KvferryError(f"{op.label} of a batch of {op.batch} names {len(of.sequences)} sequences")
        for sequence in of.released:
            self.pages.release(sequence)
            self._prefilling.pop(sequence, None)
            self._cached.pop(sequence, None)
        return of.sequences

    def _prefill(self, sequence: int, layer: int | None) -> None:
        """Prompts need not be of one length: they pass a layer one after the other. A sequence that was released and
        comes again is recomputed with what it has said."""
        if layer == 0:
            said = torch.tensor([self.answers[sequence]], dtype=torch.long, device=self.decoder.device)
            prompt = torch.cat([self._prompts[sequence], said], dim=1)
            self.pages.make_room(sequence, prompt.shape[1])
            self._prefilling[sequence] = Prefilling(self.decoder.embed(prompt))
        under_way = self._prefilling.get(sequence)
        if under_way is None or layer != under_way.depth or layer == self.decoder.layers:
            stands = "is not being prefilled" if under_way is None else f"stands below {under_way.depth}"
            raise KvferryError(f"PrefillLayer of layer {layer}: sequence {sequence} {stands}")
        cos, sin = self._rotary
        tokens = under_way.hidden.shape[1]
        prefilled = prefill_layer(self.decoder, layer, under_way.hidden, (cos[:, :, :tokens], sin[:, :, :tokens]))
        self.pages.put(layer, sequence, 0, prefilled.keys[0], prefilled.values[0])
        under_way.hidden, under_way.depth = prefilled.hidden, layer + 1
