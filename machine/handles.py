"""What ops and moves carry for a machine that really carries them out: which KV, and where it lies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvferry.layouts.pieces import Pieces, Reads
from kvferry.machine.following import Following, Said


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Byte ranges of a storage file: parallel offsets and lengths, thousands of them if need be.

    int64 arrays, or sequences of whole numbers: kept as they came, without a copy, and not to be written to
    afterwards. Iterating yields (offset, length) as plain ints, whatever they came as.

    KV has the same ranges in every tier. ``placed``: the layers whose KV it is, in order, where it gets its place in
    the tier that it moves to; None: a copy of it is brought for a layer's attention. ``pieces``: what of clusters fills
    the ranges, in the order of their bytes. ``blocks``: ids of the blocks of tokens whose KV fills them, one each; it
    gets its place there, too.
    """

    offsets: Sequence[int] | np.ndarray
    lengths: Sequence[int] | np.ndarray
    placed: Sequence[int] | None = None
    pieces: Pieces | None = None
    blocks: Sequence[int] | None = None
    n_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        lengths = self.lengths
        assert len(self.offsets) == len(lengths), (len(self.offsets), len(lengths))
        # A plain int: bytes(np.int64(5)) would be the number's own eight bytes.
        total = int(lengths.sum()) if isinstance(lengths, np.ndarray) else sum(lengths)
        object.__setattr__(self, "n_bytes", total)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(*(array.tolist() for array in self.arrays), strict=True)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def has_place(self) -> bool:
        """Whether the KV gets its place in the tier that it moves to."""
        return self.placed is not None or self.blocks is not None

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and lengths as int64 arrays: the very ones that it was made from, if those were."""
        return np.asarray(self.offsets, np.int64), np.asarray(self.lengths, np.int64)


@dataclass(frozen=True, slots=True)
class KvRef:
    """A handle to keys and values that the machine holds: never the tensor itself."""

    sequence: int
    token_chunk: int
    layer: int
    head: int | None  # None: all heads
    n_bytes: float


@dataclass(frozen=True, slots=True)
class Chunks:
    """KV chunks (t, l, h) of a stored context, to be fetched together in one transfer.

    ``ids`` are flat indices into (token chunk, layer, KV head); ``level`` is the encoding they are wanted in.
    """

    sequence: int
    ids: tuple[int, ...]
    n_bytes: float
    level: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What one layer's attention takes in while the KV lies on storage: a handle for a machine that really does it.

    The read that attention comes after brings the ``missing`` KV blocks (bool[rows, k]; a row is a sequence, or a head
    of it that chooses for itself), row by row; None: whole stretches of them, one per row. ``slots`` int[rows, k] of
    the layer's reuse buffer are where all k of a row are then; None: nothing is kept. ``recent`` tokens that are in
    memory besides are attended too, and the new one. ``ids`` are the KV blocks, like `missing`. Where rows differ in
    length, arrays are flat, and row r begins at ``starts[r]``; where blocks do, ``tokens`` are in each. ``at``: where
    the blocks lie in the processor's own memory, for a layer whose KV is there; None: it is elsewhere, and is read.
    ``reads``: where in what is read the entries of clusters are, and ``swapped`` in a second read, of what was likely
    to be wanted; ``swaps``: nothing of the layer stays in memory until its next turn.
    ``dropped``: rows and ids of what is kept no longer, where a slot is the number of its block.
    """

    layer: int
    missing: np.ndarray | None
    slots: np.ndarray | None
    recent: int
    ids: np.ndarray | None = None
    starts: np.ndarray | None = None
    tokens: np.ndarray | None = None
    at: Extents | None = None
    reads: Reads | None = None
    swapped: Reads | None = None
    swaps: bool = False
    dropped: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """Whose keys are rebuilt, before the layer's attention: a handle for a machine that really does it.

    ``ids`` int[rows, k] are the KV blocks of each row, as a Selection has them; None: all that are stored.
    """

    layer: int
    ids: np.ndarray | None


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Which sequences of a run an op is for, where not all of them decode at once: a handle for a machine that really
    does it. ``released`` are sequences that have ended: their KV is given up first."""

    sequences: tuple[int, ...]
    released: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Continued:
    """How an answer goes on: a handle for a machine that really decodes. Tokens are (id, text).

    The answer is what ``following`` has, as it comes from the cloud (the token corrector), then what ``stands``, then
    what the machine says; whatever it had said behind that is dropped. ``said`` is told every token of its own as it is
    there. ``by_text``: the cloud's ids are another tokenizer's. ``read``: how many of ``stands`` come before the run's
    own tokens, and were read before it but for the last.
    """

    following: Following | None = None
    said: Said | None = None
    stands: tuple[Any, ...] = ()
    by_text: bool = False
    read: int = 0
