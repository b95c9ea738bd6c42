"""Turns whose KV lies elsewhere while they decode: each has layers and tiers of its own, all have one index."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.build import index_of
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.recorded import chosen_in
from kvferry.backends.live.decoding.tiers import KvTiers
from kvferry.backends.live.turns.kv import KvOfConversations
from kvferry.backends.live.turns.runner import TurnRunner
from kvferry.backends.live.turns.turn_layers import TurnLayers
from kvferry.backends.needs import DecodeSizes, KvOfTurns, KvOnStorage
from kvferry.backends.world import Inputs, Say
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.machine.ops import Advance, Op, Project
from kvferry.model.decoder import Rotary
from kvferry.model.prompts import Prompts
from kvferry.policies.decode.index import IndexSpec
from kvferry.specs.errors import InputError


class TurnsInBlocks:
    """An OpRunner. One thread calls `run`; the others are called between turns."""

    def __init__(
        self,
        need: KvOfTurns,
        model: PreTrainedModel,
        prompts: Prompts,
        kv: KvOfConversations,
        loading: TurnRunner,
        rotary: Rotary,
        say: Say,
    ) -> None:
        assert need.decoding is not None
        self._turns, self._model, self._prompts, self._say = need.turns, model, prompts, say
        self._kv, self._loading, self._rotary = kv, loading, rotary
        self._longest, self._need = need.decoding.sizes, need.decoding
        self._indexes: dict[IndexSpec, Index] = {}
        self.tiers = KvTiers(self._longest.file_bytes)
        self._layers: TurnLayers | None = None
        self._number = -1
        self._chosen: dict[int, Inputs] = {}
        self._metadata_bytes = self._buffer_bytes = 0
        # Before the clock begins: what it learns offline takes a while.
        self._index_of(self._longest)

    def begin(self, need: KvOnStorage) -> None:
        """The turn at work decodes from here on. Raises InputError where its KV would lie otherwise than the others'
        does."""
        sizes = need.sizes
        of_all, of_turn = ((one.choice.group_tokens, one.choice.heads) for one in (self._longest, sizes))
        if of_all != of_turn and not isinstance(sizes.layout, ClusterLayout):
            tokens = f"{of_turn[0]:,} tokens, the longest turn in groups of {of_all[0]:,}"
            what = f"turn {self._kv.number + 1} decodes in groups of {tokens}, and what is kept has one layout"
            raise InputError(f"policies.decode.group_tokens: {what}; say how many")
        self._note()
        self._need, self._layers = need, None
        self.tiers = KvTiers(sizes.file_bytes)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op of the turn at work: of its load, or its layers'."""
        if isinstance(op, Project | Advance):
            return self._loading.run(op, request, inputs)
        number = self._kv.number
        if self._layers is None:
            self._number, self._layers = number, self._made(number)
        value = self._layers.run(op, request, inputs)
        self._kv.answers[number] = self._layers.answers[0]
        return value

    @property
    def chosen(self) -> dict[int, Inputs]:
        """Returns what was chosen so far, by turn."""
        self._note()
        return self._chosen

    def measured(self) -> dict[str, int]:
        """Returns what choosing and buffers took of memory in the turn that had most."""
        self._note()
        return {"kv_metadata_bytes": self._metadata_bytes, "kv_buffer_bytes": self._buffer_bytes}

    def _note(self) -> None:
        """Notes what the last turn leaves to be told."""
        if (layers := self._layers) is not None:
            self._chosen[self._number] = chosen_in(layers, self._need.sizes)
            self._metadata_bytes = max(self._metadata_bytes, layers.metadata_bytes)
            self._buffer_bytes = max(self._buffer_bytes, layers.buffer_bytes)

    def _made(self, number: int) -> TurnLayers:
        index = self._index_of(self._need.sizes)
        if index is not None:
            index.clear()
        return TurnLayers(
            self._kv.session(number),
            self._need,
            output=self._turns.numbered[number].output,
            rotary=self._rotary,
            index=index,
            tiers=self.tiers,
        )

    def _index_of(self, sizes: DecodeSizes) -> Index | None:
        """Returns the index of a turn; with room for the longest one."""
        spec = sizes.keys.index
        if spec is None:
            return None
        if spec not in self._indexes:
            longest, room = self._turns.longest, self._longest.layout.blocks * self._longest.choice.group_tokens
            # A text that no conversation has.
            sample, _ = self._prompts.tokens(len(self._turns), longest.prompt, 0, longest.tokens)
            made = index_of(spec, self._model, sample, 1, room, self._say)
            assert made is not None
            self._indexes[spec] = made
        return self._indexes[spec]
