"""Linux io_uring by its bare system calls: a ring of reads and writes that the kernel does by itself.

As io_uring(7), io_uring_setup(2) and io_uring_enter(2) describe it, from Linux 5.6 on. A whole batch of entries is
laid out at once, in arrays; how many of them the kernel may take is told call by call. So Python's part in a command
is a few hundred nanoseconds, whatever the queue depth.
"""

import ctypes
import errno
import mmap
import os
import struct
from contextlib import suppress

import numpy as np

# The same numbers on every architecture that came after 2018, and on those before it but alpha.
_SETUP, _ENTER, _REGISTER = 425, 426, 427
_OPCODE_READ, _OPCODE_WRITE = 22, 23
_FIXED_FILE = 1
_GET_EVENTS = 1
_REGISTER_FILES = 2
_CLAMP, _COOPERATIVE = 1 << 4, 1 << 8
# One mapping for both rings, and reads and writes as opcodes of their own.
_SINGLE_MAPPING, _READ_WRITE = 1 << 0, 1 << 3
_AT_SUBMISSION, _AT_ENTRIES = 0, 0x10000000

# struct io_uring_params: entries of both rings, flags, two of another mode's, features, one more, three reserved;
# then where in the mapping the parts of each ring lie.
_PARAMS = struct.Struct("=10I 8IQ 8IQ")
_ENTRY = np.dtype(
    [
        ("opcode", np.uint8),
        ("flags", np.uint8),
        ("priority", np.uint16),
        ("fd", np.int32),
        ("offset", np.uint64),
        ("address", np.uint64),
        ("n_bytes", np.uint32),
        ("rw_flags", np.uint32),
        ("user_data", np.uint64),
        ("unused", np.uint64, 3),
    ]
)
_COMPLETION = np.dtype([("user_data", np.uint64), ("result", np.int32), ("flags", np.uint32)])

_system = ctypes.CDLL(None, use_errno=True).syscall
_system.restype, _system.argtypes = ctypes.c_long, [ctypes.c_long] * 7


class Ring:
    """A ring for one file. `entries` commands at most in a batch; one thread at a time.

    Raises OSError where the system has no such ring, or does not allow it.
    """

    def __init__(self, fd: int, entries: int) -> None:
        self._fd, params = _set_up(entries)
        try:
            sq_entries, cq_entries, _, _, _, features = params[:6]
            sq_head, sq_tail, sq_mask, _, _, _, sq_array = params[10:17]
            cq_head, cq_tail, cq_mask, _, _, cqes = params[19:25]
            if features & (_SINGLE_MAPPING | _READ_WRITE) != _SINGLE_MAPPING | _READ_WRITE:
                raise OSError(errno.ENOSYS, "io_uring is there from Linux 5.6 on")
            n_bytes = max(sq_array + 4 * sq_entries, cqes + _COMPLETION.itemsize * cq_entries)
            rings = mmap.mmap(self._fd, n_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=_AT_SUBMISSION)
            entries_memory = mmap.mmap(
                self._fd, sq_entries * _ENTRY.itemsize, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=_AT_ENTRIES
            )
            # Single numbers by way of memoryviews, which read them several times as fast as numpy does.
            numbers = memoryview(rings)[: n_bytes // 4 * 4].cast("I")
            self._sq_head, self._sq_tail = numbers[sq_head // 4 :][:1], numbers[sq_tail // 4 :][:1]
            self._cq_head, self._cq_tail = numbers[cq_head // 4 :][:1], numbers[cq_tail // 4 :][:1]
            self._sq_mask, self._cq_mask = numbers[sq_mask // 4], numbers[cq_mask // 4]
            self._order = np.frombuffer(rings, np.uint32, sq_entries, sq_array)
            self._completions = np.frombuffer(rings, _COMPLETION, cq_entries, cqes)
            self._entries = np.frombuffer(entries_memory, _ENTRY, sq_entries)
            self._entries["fd"], self._entries["flags"] = 0, _FIXED_FILE
            self._entries["user_data"] = np.arange(sq_entries)
            self.n_entries: int = sq_entries
            files = ctypes.c_int(fd)
            _call(_REGISTER, self._fd, _REGISTER_FILES, ctypes.addressof(files), 1)
        except BaseException:
            os.close(self._fd)
            raise

    def run(
        self, offsets: np.ndarray, addresses: np.ndarray, sizes: np.ndarray, depth: int, writing: bool
    ) -> np.ndarray:
        """int32[n]: what each command returned, bytes or a negative errno; `depth` of them are under way at once.

        However it ends, no command is under way any more.
        """
        n = len(sizes)
        entries, counted = self._entries[:n], np.arange(n, dtype=np.uint32)
        entries["opcode"] = _OPCODE_WRITE if writing else _OPCODE_READ
        entries["offset"], entries["address"], entries["n_bytes"] = offsets, addresses, sizes
        head, answered = self._sq_head[0], self._cq_tail[0]
        self._order[(head + counted) & self._sq_mask] = counted
        submitted = done = 0
        try:
            # The kernel takes no more of them than it is told to.
            self._sq_tail[0] = (head + n) % 2**32
            ring, answered_by_now = self._fd, self._cq_tail
            while done < n:
                room, left = depth - submitted + done, n - submitted
                taken = _system(_ENTER, ring, room if room < left else left, done + 1, _GET_EVENTS, 0, 0)
                submitted += taken if taken >= 0 else _none_taken()
                done = (answered_by_now[0] - answered) % 2**32
            answers = self._completions[(answered + counted) & self._cq_mask]
            results = np.empty(n, np.int32)
            results[answers["user_data"]] = answers["result"]
            return results
        finally:
            self._settle(head, answered)

    def close(self) -> None:
        """Closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _settle(self, head: int, answered: int) -> None:
        """Forget what the kernel has not taken, and wait for what it has: after an interrupt, that is something."""
        self._sq_tail[0] = self._sq_head[0]
        taken = (self._sq_head[0] - head) % 2**32
        while (self._cq_tail[0] - answered) % 2**32 < taken:
            # The interrupt is about to be raised; and nobody may have the memory while it is written to.
            with suppress(KeyboardInterrupt):
                if _system(_ENTER, self._fd, 0, taken, _GET_EVENTS, 0, 0) < 0:
                    _none_taken()
        self._cq_head[0] = self._cq_tail[0]


def _none_taken() -> int:
    """0 if that is for the moment only, or raises OSError."""
    code = ctypes.get_errno()
    if code in (errno.EINTR, errno.EAGAIN, errno.EBUSY):  # a signal, or no memory for it just now
        return 0
    raise OSError(code, os.strerror(code))


def _set_up(entries: int) -> tuple[int, tuple[int, ...]]:
    """The ring's descriptor, and the parameters as the kernel filled them in."""
    for flags in (_CLAMP | _COOPERATIVE, _CLAMP):
        params = ctypes.create_string_buffer(_PARAMS.pack(0, 0, flags, *[0] * 25), _PARAMS.size)
        try:
            return _call(_SETUP, entries, ctypes.addressof(params)), _PARAMS.unpack(params.raw)
        except OSError as error:
            # Linux 5.19 brought the second flag.
            if error.errno != errno.EINVAL or not flags & _COOPERATIVE:
                raise
    raise AssertionError


def _call(number: int, a: int, b: int, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
    result: int = _system(number, a, b, c, d, e, f)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
