"""Reads a file with KV beside its log: every entry as of the last finished step, whatever became of the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kvferry.disk.block_sums import row_sums
from kvferry.disk.kv_log import last_block, log_of
from kvferry.disk.opened_file import BLOCK_BYTES
from kvferry.disk.replayed_log import ReplayedLog
from kvferry.specs.errors import InputError

# Entries are compared in portions of this many bytes.
_PORTION_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class KvEntries:
    """A row's entries by position: int64[n] ``tokens``, ``clusters`` (-1: in none), float32[n, row_heads, head_dim]
    ``keys`` and ``values``, as the model has them."""

    tokens: np.ndarray
    clusters: np.ndarray
    keys: np.ndarray
    values: np.ndarray


class KvFile:
    """As of ``step``, the last finished one: 0 when the prompts are there, n when the nth token after them is.
    ``tokens`` of each sequence there are then. ``dropped_bytes``: of a record that was cut off.

    Raises InputError, which names the file, for what is missing, cut, changed, another file's, or still being written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.log_path = log_of(self.path)
        with self._both() as (file, log):
            try:
                fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.log_path}: a run is still writing it") from None
            self.file_bytes, self.log_bytes = (os.fstat(one.fileno()).st_size for one in (file, log))
            try:
                said = self._log = ReplayedLog(self.log_path, log, self.log_bytes)
                self.header, self.step, self.tokens = said.header, said.step, said.tokens
                self.dropped_bytes = said.dropped_bytes
                self._check_identity(file)
                self._check_places()
                self._check_prompts(file)
            except MemoryError:
                raise InputError(f"{self.path}: its entries take more memory than there is") from None

    # --- what is there ---------------------------------------------------------------------------------------------

    def clusters(self, layer: int, row: int) -> dict[int, np.ndarray]:
        """By number, the tokens of each cluster of a row, in their order."""
        at = layer * self.header.layer_rows + row
        tokens = np.lexsort((self._log.order[at], self._log.cluster[at]))
        numbers = self._log.cluster[at, tokens]
        tokens, numbers = tokens[numbers >= 0], numbers[numbers >= 0]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        parts = np.split(tokens, starts[1:]) if len(starts) else []
        return {int(numbers[start]): part for start, part in zip(starts, parts, strict=True)}

    def entries(self, layer: int, row: int) -> KvEntries:
        """All of a row."""
        header, tokens = self.header, np.arange(self.tokens)
        at = layer * header.layer_rows + row
        shape = len(tokens), 2, header.row_heads, header.head_dim
        numbers = _as_float32(self.raw(layer, row), header.dtype).reshape(shape)
        return KvEntries(tokens, self._log.cluster[at].astype(np.int64), numbers[:, 0], numbers[:, 1])

    def raw(self, layer: int, row: int) -> np.ndarray:
        """uint8[tokens, entry_bytes]: the same as the model has them."""
        at, found = layer * self.header.layer_rows + row, np.empty((self.tokens, self.header.entry_bytes), np.uint8)
        logged = self._log.held[at] >= 0
        with self._both() as (file, log):
            found[logged] = self._read(log, self._log.held[at, logged])
            found[~logged] = self._read(file, self._log.placed[at, ~logged])
        self._check_sums(at, ~logged, found[~logged])
        return found

    def summary(self) -> dict[str, Any]:
        """What it holds, over all layers and rows. ``entries_in_place``: the file has them where the log says;
        ``entries_behind``: it has not, as the step's writes had not ended; ``entries_in_memory``: they had no
        place in it yet. The log has all of the latter two."""
        placed, held = self._log.placed >= 0, self._log.held >= 0
        behind = int((placed & held).sum()) - self._equal()
        return {
            "model": self.header.model,
            "dtype": self.header.dtype,
            "layers": self.header.layers,
            "sequences": self.header.sequences,
            "rows": self.header.rows,
            "entry_bytes": self.header.entry_bytes,
            "context_tokens": self.header.context,
            "step": self.step,
            "tokens": self.tokens,
            "clusters": sum(len(np.unique(of[of >= 0])) for of in self._log.cluster),
            "entries": placed.size,
            "entries_in_place": int(placed.sum()) - behind,
            "entries_behind": behind,
            "entries_in_memory": int((~placed).sum()),
            "entries_in_no_cluster": int((self._log.cluster < 0).sum()) if self.header.clusters else 0,
            "file_bytes": self.file_bytes,
            "log_bytes": self.log_bytes,
            "dropped_bytes": self.dropped_bytes,
        }

    @contextmanager
    def _both(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The file and its log."""
        if self.path.is_file() and not self.log_path.exists():
            what = f"there is no such file; {self.path.name} is what live.kv_file names, if a run has written both"
            raise InputError(f"{self.log_path}: {what}")
        with _opened(self.path) as file, _opened(self.log_path) as log:
            yield file, log

    # --- the file --------------------------------------------------------------------------------------------------

    def _check_identity(self, file: BinaryIO) -> None:
        wanted = self.header.data_bytes + BLOCK_BYTES
        if self.file_bytes != wanted:
            raise InputError(f"{self.path}: has {self.file_bytes:,} bytes, {wanted:,} when it was made")
        file.seek(self.header.data_bytes)
        if file.read(BLOCK_BYTES) != last_block(self.header.identity):
            raise InputError(f"{self.log_path}: is not the log of {self.path}, but that of another file")

    def _check_places(self) -> None:
        """No two entries share bytes of the file."""
        at = np.sort(self._log.placed[self._log.placed >= 0])
        if (np.diff(at) < self.header.entry_bytes).any():
            where = int(at[int((np.diff(at) < self.header.entry_bytes).argmax())])
            raise InputError(f"{self.log_path}: two entries lie at byte {where} of {self.path}")

    def _check_prompts(self, file: BinaryIO) -> None:
        """What only the file has is what was written there."""
        for row in range(self.header.rows):
            absent = self._log.held[row] < 0
            self._check_sums(row, absent, self._read(file, self._log.placed[row, absent]))

    def _check_sums(self, row: int, which: np.ndarray, found: np.ndarray) -> None:
        tokens = np.flatnonzero(which)
        other = tokens[row_sums(found) != self._log.sums[row, tokens]]
        if not len(other):
            return
        layer, of_layer = divmod(row, self.header.layer_rows)
        what = f"{len(other)} entries of layer {layer}, row {of_layer}, from token {other[0]} on"
        if not self.step:
            raise InputError(f"{self.path}: no step was finished: {what} are not there yet")
        raise InputError(f"{self.path}: {what} are not what was written there: the file has been changed")

    def _equal(self) -> int:
        """Entries that both have, and are the same."""
        found, portion = 0, max(1, _PORTION_BYTES // self.header.entry_bytes)
        both = np.flatnonzero((self._log.placed >= 0) & (self._log.held >= 0))
        with self._both() as (file, log):
            for begin in range(0, len(both), portion):
                which = both[begin : begin + portion]
                parts = self._read(file, self._log.placed.flat[which]), self._read(log, self._log.held.flat[which])
                found += int((parts[0] == parts[1]).all(axis=1).sum())
        return found

    def _read(self, file: BinaryIO, offsets: np.ndarray) -> np.ndarray:
        """uint8[n, entry_bytes]: entries at these offsets, those side by side by one read."""
        n_bytes = self.header.entry_bytes
        found = np.empty((len(offsets), n_bytes), np.uint8)
        order = np.argsort(offsets)
        begins = np.flatnonzero(np.diff(offsets[order], prepend=-2 * n_bytes) != n_bytes)
        for which in np.split(order, begins[1:]) if len(order) else []:
            part = os.pread(file.fileno(), len(which) * n_bytes, int(offsets[which[0]]))
            if len(part) < len(which) * n_bytes:
                raise InputError(f"{file.name}: was cut while it was read")
            found[which] = np.frombuffer(part, np.uint8).reshape(-1, n_bytes)
        return found


def _opened(path: Path) -> BinaryIO:
    try:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file" if not path.exists() else f"{path}: is no file")
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _as_float32(raw: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return np.asarray(raw.view({"float32": "<f4", "float16": "<f2"}[dtype]), np.float32)
