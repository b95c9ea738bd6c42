"""The log beside a file with KV, read to its last finished step: which entries there are, and where each lies."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kvferry.disk import log_frames
from kvferry.disk.kv_record import HEADER, PROMPTS, STEP, KvHeader, KvRecord
from kvferry.disk.log_frames import Frame
from kvferry.specs.errors import InputError

# No header is longer.
_MOST_HEADER_BYTES = 1 << 16


class ReplayedLog:
    """What `log`, a file of this path with so many bytes, says: ``step``, the last finished one, and ``tokens`` of each
    sequence there are then; ``dropped_bytes`` of a record that was cut off.

    By row of all layers and token: ``cluster`` (-1: in none) and ``order`` in it, and where entries lie in the file,
    ``placed``, and in the log, ``held`` (-1: they do not). ``sums``: of the prompts' entries.

    Raises InputError for what is cut, changed, or no such log.
    """

    def __init__(self, path: Path, log: BinaryIO, n_bytes: int) -> None:
        self._path = path
        found = log_frames.frames(log, self._path)
        self.header = self._header(log, next(found, None))
        prompts, steps = self._told(found)
        last = (prompts + steps)[-1]
        self.dropped_bytes = n_bytes - last.offset - last.n_bytes
        self.step, self.tokens = len(steps), self.header.context + len(steps)
        shape = self.header.rows, self.tokens
        self.cluster, self.order = np.full(shape, -1, np.int32), np.zeros(shape, np.int64)
        # Where each entry lies in the file, and in the log; -1: it does not.
        self.placed, self.held = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        self.sums = np.zeros((self.header.rows, self.header.context), np.uint64)
        self._told_members = 0
        for n, frame in enumerate(prompts):
            self._take(self._record(log, frame), frame, n, self.header.context)
        for n, frame in enumerate(steps):
            self._take(self._record(log, frame), frame, self.header.context + n, self.header.context + n + 1)

    def _header(self, log: BinaryIO, frame: Frame | None) -> KvHeader:
        if frame is None:
            raise InputError(f"{self._path}: has no header: the run was ended before it wrote anything")
        try:
            if frame.kind != HEADER or frame.n_bytes > _MOST_HEADER_BYTES:
                raise ValueError("it does not begin with a header")
            return KvHeader.unpacked(log_frames.content_of(log, self._path, frame))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self._path}: not the log of a KV file: {error}") from None

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
            raise InputError(f"{self._path}: no step was finished: it has {what}")
        return prompts, steps

    def _record(self, log: BinaryIO, frame: Frame) -> KvRecord:
        try:
            return KvRecord.unpacked(log_frames.content_of(log, self._path, frame), self.header.entry_bytes)
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
        self.cluster[of_members, members] = record.members[:, 2]
        self.order[of_members, members] = self._told_members + np.arange(len(members))
        self._told_members += len(members)
        self.placed[of_placed, placed] = record.offsets
        if layer is not None:
            self.sums[of_placed, placed] = record.sums
        begin = frame.offset + frame.n_bytes - record.entries.size
        self.held[of_held, held] = begin + np.arange(len(held)) * header.entry_bytes
        new = slice(*rows), slice(0, tokens) if layer is not None else slice(tokens - 1, tokens)
        if ((self.placed if layer is not None else self.held)[new] < 0).any():
            raise self._not_a_log(frame, "lacks entries")

    def _not_a_log(self, frame: Frame, why: str) -> InputError:
        return InputError(f"{self._path}: the record at byte {frame.offset} {why}")


def _within(values: np.ndarray, begin: int, end: int) -> bool:
    return not len(values) or (int(values.min()) >= begin and int(values.max()) < end)
