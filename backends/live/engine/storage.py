"""The way to a storage file: reads and writes one after the other, in a thread."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.thread_work import Call, LiveWork
from kvferry.backends.live.engine.worker import Worker
from kvferry.disk.direct_storage import Data
from kvferry.machine.ops import Extents
from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.specs.errors import InputError


class ByteStore(Protocol):
    """A file of bytes, read and written by one thread."""

    def read(self, extents: Extents) -> Data: ...
    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None: ...


@runtime_checkable
class LikeDevice(ByteStore, Protocol):
    """A file that stands for another device, whose blocks are larger than its own."""

    def write(self, extents: Extents, data: bytes | bytearray | memoryview, *, parts_read: bool = False) -> None: ...
    def read_first(self, extents: Extents) -> Extents | None: ...
    def device_bytes(self, extents: Extents) -> int: ...


# Returns the bytes that a write writes; the last argument: the values of the tickets of `after`, in that order.
Source = Callable[[Extents, int | None, Sequence[Any]], bytes | bytearray | memoryview]


class LiveStorage(Worker):
    """Moves extents of a file. Raises InputError without a `file`, and for writes without a `source`."""

    def __init__(self, env: WallClockEnvironment, tell: Tell, file: ByteStore | None, source: Source | None) -> None:
        super().__init__(env, "storage", tell)
        self._file, self._source = file, source

    def read(self, extents: Extents, after: Iterable[Ticket] = (), request: int | None = None) -> LiveWork:
        """The ticket fires with the file's `Data`."""
        file = self._opened()
        return self._move("Read", extents, lambda _: file.read(extents), after, request)

    def write(self, extents: Extents, after: Iterable[Ticket] = (), request: int | None = None) -> LiveWork:
        """The ticket fires once all is written. The modelled device's blocks that it covers in part are read first."""
        file, source, asked = self._opened(), self._source, {}
        if source is None:
            raise InputError("this machine was made without a source, of what is to be written")
        if isinstance(file, LikeDevice):
            after, asked = tuple(after), {"parts_read": True}
            if (parts := file.read_first(extents)) is not None:
                # One thread serves the storage, so that the write comes behind it.
                self._move("Read", parts, lambda _: file.read(parts).release(), after, request)
        return self._move(
            "Write",
            extents,
            lambda inputs: file.write(extents, source(extents, request, inputs), **asked),
            after,
            request,
        )

    def _opened(self) -> ByteStore:
        if self._file is None:
            raise InputError("this machine was made without a storage file")
        return self._file

    def _move(self, label: str, extents: Extents, call: Call, after: Iterable[Ticket], request: int | None) -> LiveWork:
        n_bytes = self._file.device_bytes(extents) if isinstance(self._file, LikeDevice) else extents.n_bytes
        return self.do(call, after, n_bytes=n_bytes, label=label, request=request)
