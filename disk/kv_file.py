"""Reads a file with KV beside its log: every entry as of the last finished step, whatever became of the process."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kvferry.disk import log_frames
from kvferry.disk.block_sums import row_sums
from kvferry.disk.kv_log import last_block, log_of
from kvferry.disk.kv_record import HEADER, PROMPTS, STEP, KvHeader, KvRecord
from kvferry.disk.log_frames import Frame
from kvferry.disk.opened_file import BLOCK_BYTES
from kvferry.specs.errors import InputError

# No header is longer, and entries are compared in portions of this many bytes.
_MOST_HEADER_BYTES = 1 << 16
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
        if self.path.is_file() and not self.log_path.exists():
            what = f"there is no such file; {self.path.name} is what live.kv_file names, if a run has written both"
            raise InputError(f"{self.log_path}: {what}")
        with _opened(self.path) as file, _opened(self.log_path) as log:
            try:
                fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.log_path}: a run is still writing it") from None
            self.file_bytes, self.log_bytes = (os.fstat(one.fileno()).st_size for one in (file, log))
            try:
                self._replay(log)
                self._check_identity(file)
                self._check_places()
                self._check_prompts(file)
            except MemoryError:
                raise InputError(f"{self.path}: its entries take more memory than there is") from None

    # --- what is there ---------------------------------------------------------------------------------------------

    def clusters(self, layer: int, row: int) -> dict[int, np.ndarray]:
        """By number, the tokens of each cluster of a row, in their order."""
        at = layer * self.header.layer_rows + row
        tokens = np.lexsort((self._order[at], self._cluster[at]))
        numbers = self._cluster[at, tokens]
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
        return KvEntries(tokens, self._cluster[at].astype(np.int64), numbers[:, 0], numbers[:, 1])

    def raw(self, layer: int, row: int) -> np.ndarray:
        """uint8[tokens, entry_bytes]: the same as the model has them."""
        at, found = layer * self.header.layer_rows + row, np.empty((self.tokens, self.header.entry_bytes), np.uint8)
        logged = self._held[at] >= 0
        if self.path.is_file() and not self.log_path.exists():
            what = f"there is no such file; {self.path.name} is what live.kv_file names, if a run has written both"
            raise InputError(f"{self.log_path}: {what}")
        with _opened(self.path) as file, _opened(self.log_path) as log:
            found[logged] = self._read(log, self._held[at, logged])
            found[~logged] = self._read(file, self._placed[at, ~logged])
        self._check_sums(at, ~logged, found[~logged])
        return found

    def summary(self) -> dict[str, Any]:
        """What it holds, over all layers and rows. ``entries_in_place``: the file has them where the log says;
        ``entries_behind``: it has not, as the step's writes had not ended; ``entries_in_memory``: they had no
        place in it yet. The log has all of the latter two."""
        placed, held = self._placed >= 0, self._held >= 0
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
            "clusters": sum(len(np.unique(of[of >= 0])) for of in self._cluster),
            "entries": placed.size,
            "entries_in_place": int(placed.sum()) - behind,
            "entries_behind": behind,
            "entries_in_memory": int((~placed).sum()),
            "entries_in_no_cluster": int((self._cluster < 0).sum()) if self.header.clusters else 0,
            "file_bytes": self.file_bytes,
            "log_bytes": self.log_bytes,
            "dropped_bytes": self.dropped_bytes,
        }

    # --- the log ---------------------------------------------------------------------------------------------------

    def _replay(self, log: BinaryIO) -> None:
        found = log_frames.frames(log, self.log_path)
        self.header = self._header(log, next(found, None))
        prompts, steps = self._told(found)
        last = (prompts + steps)[-1]
        self.dropped_bytes = self.log_bytes - last.offset - last.n_bytes
        self.step, self.tokens = len(steps), self.header.context + len(steps)
        shape = self.header.rows, self.tokens
        self._cluster, self._order = np.full(shape, -1, np.int32), np.zeros(shape, np.int64)
        # Where each entry lies in the file, and in the log; -1: it does not.
        self._placed, self._held = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        self._sums = np.zeros((self.header.rows, self.header.context), np.uint64)
        self._told_members = 0
        for n, frame in enumerate(prompts):
            self._take(self._record(log, frame), frame, n, self.header.context)
        for n, frame in enumerate(steps):
            self._take(self._record(log, frame), frame, self.header.context + n, self.header.context + n + 1)

    def _header(self, log: BinaryIO, frame: Frame | None) -> KvHeader:
        if frame is None:
            raise InputError(f"{self.log_path}: has no header: the run was ended before it wrote anything")
        try:
            if frame.kind != HEADER or frame.n_bytes > _MOST_HEADER_BYTES:
                raise ValueError("it does not begin with a header")
            return KvHeader.unpacked(log_frames.content_of(log, self.log_path, frame))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.log_path}: not the log of a KV file: {error}") from None

    def _told(self, found: Iterator[Frame]) -> tuple[list[Frame], list[Frame]]:
        """The frames of the prompts' layers, and of steps. Their sizes bound what the header may claim."""
        header, prompts, steps = self.header, list[Frame](), list[Frame]()
        for frame in found:
            if frame.kind not in (PROMPTS, STEP) or (frame.kind == PROMPTS) != (len(prompts) < header.layers):
                raise self._not_a_log(frame, "is not what comes next")
            each = 24 if frame.kind == PROMPTS else 8 + header.entry_bytes
            least = each * (header.layer_rows * header.context if frame.kind == PROMPTS else header.rows)
            if frame.n_bytes < least:
                raise self._not_a_log(frame, f"has {frame.n_bytes:,} bytes, at least {least:,} are its entries'")
            (prompts if frame.kind == PROMPTS else steps).append(frame)
        if len(prompts) < header.layers:
            what = f"{len(prompts)} of {header.layers} layers of the prompts"
            raise InputError(f"{self.log_path}: no step was finished: it has {what}")
        return prompts, steps

    def _record(self, log: BinaryIO, frame: Frame) -> KvRecord:
        try:
            return KvRecord.unpacked(log_frames.content_of(log, self.log_path, frame), self.header.entry_bytes)
        except ValueError as error:
            raise self._not_a_log(frame, str(error)) from None

    def _take(self, record: KvRecord, frame: Frame, number: int, tokens: int) -> None:
        """What a record says, of `tokens` tokens of each row that there are."""
        header = self.header
        last = header.data_bytes - header.entry_bytes
        rows, layer = (0, header.rows), None
        if frame.kind == PROMPTS:
            layer = number
            rows = layer * header.layer_rows, (layer + 1) * header.layer_rows
        columns = (record.members[:, :2], record.placed, record.held)
        inside = all(_within(of[:, 0], *rows) and _within(of[:, 1], 0, tokens) for of in columns)
        if record.number != number or not inside:
            raise self._not_a_log(frame, f"is not that of number {number}")
        if not (_within(record.offsets, 0, last + 1) and _within(record.members[:, 2], 0, 1 << 31)):
            raise self._not_a_log(frame, "names places outside of the file")
        if (layer is not None) != bool(len(record.sums)):
            raise self._not_a_log(frame, "has sums of other entries than the prompts'")
        (of_members, members), (of_placed, placed), (of_held, held) = (of.T for of in columns)
        self._cluster[of_members, members] = record.members[:, 2]
        self._order[of_members, members] = self._told_members + np.arange(len(members))
        self._told_members += len(members)
        self._placed[of_placed, placed] = record.offsets
        if layer is not None:
            self._sums[of_placed, placed] = record.sums
        begin = frame.offset + frame.n_bytes - record.entries.size
        self._held[of_held, held] = begin + np.arange(len(held)) * header.entry_bytes
        new = slice(*rows), slice(0, tokens) if layer is not None else slice(tokens - 1, tokens)
        if ((self._placed if layer is not None else self._held)[new] < 0).any():
            raise self._not_a_log(frame, "lacks entries")

    def _not_a_log(self, frame: Frame, why: str) -> InputError:
        return InputError(f"{self.log_path}: the record at byte {frame.offset} {why}")

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
        at = np.sort(self._placed[self._placed >= 0])
        if (np.diff(at) < self.header.entry_bytes).any():
            where = int(at[int((np.diff(at) < self.header.entry_bytes).argmax())])
            raise InputError(f"{self.log_path}: two entries lie at byte {where} of {self.path}")

    def _check_prompts(self, file: BinaryIO) -> None:
        """What only the file has is what was written there."""
        for row in range(self.header.rows):
            absent = self._held[row] < 0
            self._check_sums(row, absent, self._read(file, self._placed[row, absent]))

    def _check_sums(self, row: int, which: np.ndarray, found: np.ndarray) -> None:
        tokens = np.flatnonzero(which)
        other = tokens[row_sums(found) != self._sums[row, tokens]]
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
        both = np.flatnonzero((self._placed >= 0) & (self._held >= 0))
        if self.path.is_file() and not self.log_path.exists():
            what = f"there is no such file; {self.path.name} is what live.kv_file names, if a run has written both"
            raise InputError(f"{self.log_path}: {what}")
        with _opened(self.path) as file, _opened(self.log_path) as log:
            for begin in range(0, len(both), portion):
                which = both[begin : begin + portion]
                parts = self._read(file, self._placed.flat[which]), self._read(log, self._held.flat[which])
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


def _within(values: np.ndarray, begin: int, end: int) -> bool:
    return not len(values) or (int(values.min()) >= begin and int(values.max()) < end)


def _as_float32(raw: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return np.asarray(raw.view({"float32": "<f4", "float16": "<f2"}[dtype]), np.float32)
