"""Layers that are answered alike: what a step finds in the first of them goes for all."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from kvferry.machine.ops import Op
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.layer_state import LayerState
from kvferry.policies.decode.caches_of_layers import CachesOfLayers
from kvferry.policies.decode.cluster_cache import ClusterCache
from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.policies.decode.rows import BlockRows, Lookup

# Tells what an op that is handed over later in a step will be answered.
Foretold = Callable[[Op], Ticket]


class AlikeLayers:
    """The layers of a batch, by which of them are alike. Until they are told apart, each is like itself alone, and
    decided by itself."""

    def __init__(self, layers: Sequence[LayerState]) -> None:
        self._layers = layers
        self._alike = [[n] for n in range(len(layers))]
        # Layers told apart whose caches are swapped, with these, and answers to ops that come later in a step.
        self._together: tuple[list[int], CachesOfLayers] | None = None
        self._foretold: Foretold | None = None

    def tell_apart(self, kinds: int, foretold: Foretold, *, swaps: bool) -> None:
        """Only the first layers are told apart from now on, and those behind are each like one of them, in turn: of
        `kinds` kinds, and the very first by itself where something of it comes beside the output head (`swaps`)."""
        self._foretold = foretold
        first = int(swaps)
        self._alike = [[] for _ in self._layers]
        for n in range(len(self._layers)):
            self._alike[n if n < first else first + (n - first) % kinds].append(n)
        apart = [layer for layer in range(first, len(self._layers)) if self._alike[layer]]
        caches = [self._layers[layer].resident for layer in apart]
        if caches and swaps and all(isinstance(cache, ClusterCache) for cache in caches):
            self._together = apart, CachesOfLayers(cast(list[ClusterCache], caches))

    def __call__(self, layer: int) -> Sequence[int]:
        """Returns this layer and the ones behind that are like it; none for one that is like an earlier one."""
        return self._alike[layer]

    def decided_with(self, layer: int) -> Sequence[int]:
        """Returns the layers told apart whose blocks are chosen, looked up and maintained with this one's, itself
        first; none where that was done with an earlier one's."""
        if self._together is None or layer not in self._together[0]:
            return (layer,)
        layers = self._together[0]
        return layers if layer == layers[0] else ()

    def foretold(self, op: Op) -> Ticket:
        """Returns what an op of a layer that is decided with an earlier one will be answered."""
        assert self._foretold is not None
        return self._foretold(op)

    def look_up(self, layers: Sequence[int], wanted: Sequence[tuple[BlockRows, np.ndarray | None]]) -> list[Lookup]:
        """Finds the wanted blocks of layers that are decided together, with the tokens in each."""
        if len(layers) == 1 or self._together is None:
            return [self._layers[n].resident.look_up(*of) for n, of in zip(layers, wanted, strict=True)]
        return self._together[1].look_up_each([(blocks, tokens) for blocks, tokens in wanted if tokens is not None])

    def ahead(
        self, layers: Sequence[int], limit: ReadAhead | None, token_bytes: int, changing: BlockRows | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns rows and blocks that each of these layers takes ahead, without what is `changing`."""
        if self._together is None or len(layers) == 1:
            return [self._layers[n].resident.ahead(limit, token_bytes, changing) for n in layers]
        return self._together[1].ahead_each(limit, token_bytes)
