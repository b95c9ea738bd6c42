"""Fake machines that differ in what things take, or in what they keep of what they were asked."""

from collections.abc import Iterable
from typing import Any

from fake_machine import FakeMachine

from kvferry.machine.ops import Chunks, KvRef, Op
from kvferry.machine.ticket import Ticket


class TimedMachine(FakeMachine):
    """A fake machine on which ops, fetches and copies take what `seconds` says."""

    def seconds(self, on: str, asked: Op | Chunks | KvRef) -> float:
        """How long a queue takes for what it is asked: "link", "copy", or a queue that ops are submitted to."""
        raise NotImplementedError

    def submit(
        self, op: Op, *, after: Iterable[Ticket] = (), on: str = "compute", priority: int = 0, **_: Any
    ) -> Ticket:
        return self._put(on, self.seconds(on, op), 0.0, after, None, priority)

    def fetch(self, chunks: Chunks, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self._put(("link", request), self.seconds("link", chunks), chunks.n_bytes, after, None, 0)

    def copy(self, kv: KvRef, to: str, *, after: Iterable[Ticket] = (), **_: Any) -> Ticket:
        took_s = self.seconds("copy", kv)
        return self._put("copy", took_s, kv.n_bytes if took_s else 0.0, after, None, 0)
