"""The hidden state of a lock-step batch on its way through the layers."""

from collections.abc import Sequence
from typing import Any

import torch

from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.machine.ops import FeedForward, Op, ProjectKv, ProjectQ, RestOfLayer
from kvferry.model.decoder import Decoder, Rotary
from kvferry.model.whole_prefill import PrefilledLayer, prefill_layer
from kvferry.specs.errors import KvferryError

KeysValues = tuple[torch.Tensor, torch.Tensor]


class HiddenState(RegisteredOps):
    """Stands below layer `depth`: of the prompts first, then of the token under way, at `position`. It holds what that
    layer has made of it so far. Raises KvferryError for ops out of turn."""

    def __init__(self, decoder: Decoder, prompts: torch.Tensor, rotary: Rotary) -> None:
        self._decoder, self.rotary = decoder, rotary
        self._tensor = decoder.embed(prompts)
        self.depth, self.position = 0, prompts.shape[1] - 1
        # Made by the layer of the token under way, with its rotary embedding; None: not projected yet.
        self._queries: torch.Tensor | None = None
        self._keys_values: KeysValues | None = None
        # Given by its attention.
        self.attended: torch.Tensor | None = None

    def check(self, op: Op, layer: int | None) -> int:
        """Returns the layer of an op, whose turn it is."""
        if layer != self.depth:
            raise KvferryError(f"{op.label} of layer {layer}: the hidden state stands below {self.depth}")
        return layer

    def prefill(self) -> PrefilledLayer:
        """Computes a layer of the prompts."""
        return prefill_layer(self._decoder, self.depth, self._tensor, self._rotary_at(0, self._tensor.shape[1]))

    def prefilled(self, hidden: torch.Tensor) -> None:
        """A layer of the prompts has been computed, or is known."""
        self._tensor, self.depth = hidden, self.depth + 1

    @runs(ProjectQ)
    def _project(self, op: ProjectQ, inputs: Sequence[Any]) -> None:
        """The layer's query of the token under way, for what comes before the rest of the layer."""
        self._queries = self._decoder.queries(self.check(op, op.layer), self._tensor, self._rotary_now)
        self._keys_values = None

    @runs(ProjectKv)
    def _project_kv(self, op: ProjectKv, inputs: Sequence[Any]) -> None:
        layer = self.check(op, op.layer)
        if self._queries is None:
            raise KvferryError(f"{op.label} of layer {layer}: its query has not been projected")
        self._keys_values = self._new()

    def projected_keys(self, op: Op, layer: int) -> torch.Tensor:
        """Returns keys of the token under way before it is attended to."""
        if layer != self.depth or self._keys_values is None:
            raise KvferryError(f"{op.label} of layer {layer}: its keys have not been projected")
        return self._keys_values[0]

    def keys_values(self) -> KeysValues:
        """Returns the layer's keys and values of the token under way."""
        return self._keys_values or self._new()

    def queries(self, layer: int) -> torch.Tensor:
        """Returns the queries of the token under way in a layer. Where the token has not come so far, its present
        hidden state stands in for the one below that layer."""
        if self._queries is not None and layer == self.depth:
            return self._queries
        return self._decoder.queries(layer, self._tensor, self._rotary_now)

    @runs(RestOfLayer)
    def _rest(self, op: RestOfLayer, inputs: Sequence[Any]) -> None:
        layer = self.check(op, op.layer)
        if self._queries is None:
            raise KvferryError(f"{op.label} of layer {layer}: it has not been projected")
        self._feed_forward(op, inputs)

    @runs(FeedForward)
    def _feed_forward(self, op: FeedForward | RestOfLayer, inputs: Sequence[Any]) -> None:
        self.check(op, op.layer)
        if self.attended is None:
            raise KvferryError(f"layer {self.depth} has not attended yet")
        self._tensor = self._decoder.above(self.depth, self._tensor, self.attended)
        self._queries = self._keys_values = self.attended = None
        self.depth += 1

    def logits(self) -> torch.Tensor:
        """Returns those of the next token, once all layers were passed."""
        if self.depth != self._decoder.layers:
            raise KvferryError(f"the hidden state has passed {self.depth} of {self._decoder.layers} layers")
        return self._decoder.logits(self._tensor[:, -1])

    def begin_token(self, said: torch.Tensor) -> None:
        """The next token goes through the layers."""
        self._tensor, self.depth = self._decoder.embed(said[:, None]), 0
        self.position += 1

    @property
    def _rotary_now(self) -> Rotary:
        """Returns the rotary embedding of the token under way."""
        return self._rotary_at(self.position, self.position + 1)

    def _new(self) -> KeysValues:
        return self._decoder.keys_values(self.depth, self._tensor, self._rotary_now)

    def _rotary_at(self, begin: int, end: int) -> Rotary:
        cos, sin = self.rotary
        return cos[:, :, begin:end], sin[:, :, begin:end]
