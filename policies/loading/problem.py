"""The loading problem: which units of a context's KV are streamed and which are computed.

A unit (t, l, c) is the KV of token chunk t at layer l. Under the coupling "per_head" c is a KV head
(SparKV Eq. 4-5); under "all_heads" there is one c, as a real Transformer advances all heads together.
A column (t, c) is computed from layer 0 upwards: its depth is the number of layers computed.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Literal

import numpy as np

Coupling = Literal["per_head", "all_heads"]


@dataclass(frozen=True, kw_only=True)
class LoadProblem:
    """Costs and sizes of every unit, each array of shape [T, L, C]; indices count from 0.

    ``compute_s[t, l, c]`` is what the device needs to emit the KV of (t, l, c) when everything it depends on
    is there. per_head: the whole layer for one head, only the projection at the last layer (IV-C).
    all_heads: advance layer l-1, then project layer l.
    ``stream_bytes`` is the encoded size at level 0, and ``level_scale`` the sizes of all levels relative to it.
    ``start_s``: how long the processor still takes to start, in the seconds of ``compute_s``.
    ``read_bytes``: what each unit takes on local storage, infinite where it does not lie there; None if nothing does.
    """

    compute_s: np.ndarray
    stream_bytes: np.ndarray
    coupling: Coupling
    level_scale: tuple[float, ...] = (1.0,)
    start_s: float = 0.0
    read_bytes: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.compute_s.shape != self.stream_bytes.shape or self.compute_s.ndim != 3:
            raise ValueError(f"shapes differ: {self.compute_s.shape} and {self.stream_bytes.shape}")
        if self.read_bytes is not None and self.read_bytes.shape != self.compute_s.shape:
            raise ValueError(f"shapes differ: {self.compute_s.shape} and {self.read_bytes.shape}")

    @property
    def stored_bytes(self) -> np.ndarray:
        """``read_bytes``, infinite throughout where nothing lies on local storage."""
        return np.full(self.compute_s.shape, np.inf) if self.read_bytes is None else self.read_bytes

    # Asked for again and again, once per unit at least.
    @cached_property
    def token_chunks(self) -> int:
        return self.compute_s.shape[0]

    @cached_property
    def layers(self) -> int:
        return self.compute_s.shape[1]

    @cached_property
    def columns_per_chunk(self) -> int:
        return self.compute_s.shape[2]

    @cached_property
    def units(self) -> int:
        return self.compute_s.size

    def unit(self, t: int, l: int, c: int) -> int:
        """The flat index of a unit, as arrays flattened in C order have it."""
        return (t * self.layers + l) * self.columns_per_chunk + c

    def place(self, unit: int) -> tuple[int, int, int]:
        """(t, l, c) of a flat index."""
        return self.places[unit]

    @cached_property
    def places(self) -> list[tuple[int, int, int]]:
        """(t, l, c) of every unit, by its flat index; not to be written to."""
        return _places_of(*self.compute_s.shape)

    def attended_layer(self, l: int) -> int | None:
        """The layer whose earlier tokens' KV must be there before a unit at layer l can be computed.

        per_head (Eq. 4): the unit's own layer, none for the last. all_heads: the layer below, which is
        advanced to get here; none for the first, projected from the embeddings.
        """
        if self.coupling == "per_head":
            return l if l < self.layers - 1 else None
        return l - 1 if l > 0 else None


@lru_cache(maxsize=4)
def _places_of(tokens: int, layers: int, columns: int) -> list[tuple[int, int, int]]:
    """The places of all units. Loads of contexts that are as long share them."""
    return list(product(range(tokens), range(layers), range(columns)))
