"""The KV of conversations on a real device: of the turn at work, and what stays in memory and on storage behind it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event
from typing import Any

import numpy as np
import torch

from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.turns.cloud_of_turns import CloudOfTurns
from kvferry.backends.live.turns.texts import Ids, Texts
from kvferry.backends.live.turns.turn_file import TurnFile
from kvferry.disk.direct_storage import Data
from kvferry.disk.kept_blocks import KeptBlocks
from kvferry.machine.ops import Extents
from kvferry.machine.ticket import Ticket
from kvferry.model.kv import SessionKv
from kvferry.model.turn_session import TurnSession
from kvferry.specs.errors import KvferryError, LinkDown
from kvferry.system.aligned_memory import aligned_memory
from kvferry.traces.turn import Turn, Turns

# Makes the session of a turn that reads these tokens, in the buffers of one that is over if they will do.
NewSession = Callable[[Turn, Ids, SessionKv | None], TurnSession]


class KvOfConversations:
    """A KvBetweenTurns. The environment's thread calls its members, the storage's ``source``, the one that copies
    ``place`` and ``load``, and the processor's asks for ``session`` once what it needs has been read.

    ``answers``: token ids by turn; ``number``: the turn at work. ``found_earlier``: what `found` has returned, by turn.
    `place_bytes`: of a block in the file. `at_work`: where turns decode that do so on storage.
    """

    def __init__(
        self,
        turns: Turns,
        texts: Texts,
        new_session: NewSession,
        file: KeptBlocks | None,
        place_bytes: int,
        at_work: TurnFile | None = None,
    ) -> None:
        self._turns, self._texts, self._new_session, self._file = turns.numbered, texts, new_session, file
        self.answers: dict[int, list[int]] = {}
        self._place_bytes, self._at_work = place_bytes, at_work
        # The machine that this is of, and the cloud where KV goes.
        self.machine: LiveMachine | None = None
        self.cloud: CloudOfTurns | None = None
        self.found_in_cloud: dict[int, list[int]] = {}
        self.found_earlier: dict[int, dict[int, int]] = {}
        # KV [layers, 2, heads, block, head_dim] of the blocks that stay in memory.
        self._memory: dict[int, torch.Tensor] = {}
        self.number = -1
        # Buffers of the turn before.
        self.spare: SessionKv | None = None
        self._session: TurnSession | None = None
        # Whether all that is read for the turn is there; closed: it never will be.
        self._was_read, self._closed = Event(), False
        self._awaited: set[int] = set()
        self._names: dict[int, bytes] = {}
        self._sent: set[int] = set()

    def found(self, turn: int) -> Mapping[int, int]:
        if self._file is None:
            return {}
        names = self._texts.names(turn, self.answers)
        self._names |= names
        found = {block: self._file.kept[name] for block, name in names.items() if name in self._file.kept}
        self.found_earlier.setdefault(turn, {}).update(found)
        return found

    def name_of(self, block: int) -> bytes:
        """Returns the name of a block of a turn that has been answered."""
        return self._names[block]

    def begin(self, turn: int, read: Sequence[int], pages: Sequence[int] = ()) -> None:
        self.number, asked = turn, self._turns[turn]
        if self._at_work is not None:
            self._at_work.lay(pages)
        session = self._new_session(asked, self._texts.prompt(turn, self.answers), self.spare)
        self._session, self.spare = session, session.kv
        for n in range(len(session.kv.tokens)):
            if (kv := self._memory.get(asked.blocks[n])) is not None:
                session.put_block(n, kv)
        self._awaited = set(read)
        self._was_read.clear()
        if not read:
            self._was_read.set()

    def hold(self, blocks: Collection[int]) -> None:
        self._memory = {block: self._of(block) for block in blocks}
        if (kv := next(iter(self._memory.values()), None)) is not None and kv.is_cuda:
            # Before the next turn's stream writes over what is copied.
            torch.cuda.current_stream(kv.device).synchronize()

    def stays(self, pages: Mapping[int, int]) -> Sequence[Ticket]:
        assert self.machine is not None
        return [self.machine.storage.do(lambda _: None if self._file is None else self._file.note(pages), label="Note")]

    def in_cloud(self, turn: int) -> Sequence[int]:
        if self.cloud is None:
            return ()
        names = self._texts.names(turn, self.answers)
        self._names |= names
        # Of what this run has sent, it knows.
        found = [block for block in self.cloud.found(names) if block not in self._sent]
        self.found_in_cloud[turn] = sorted({*self.found_in_cloud.get(turn, ()), *found})
        return found

    def send(self, blocks: Sequence[int]) -> Sequence[Ticket]:
        if self.cloud is None or self.machine is None:
            return ()
        ids, leaves = self._texts.ids(self.number, self.answers), self._turns[self.number].leaves
        return [self.machine.host.do(self._sending(block, leaves.index(block), ids)) for block in blocks]

    def _sending(self, block: int, number: int, ids: Ids) -> Callable[[object], LinkDown | None]:
        """Returns what sends a block, with the KV that it has now."""
        cloud, name, kv = self.cloud, self._names[block], self._of(block)
        assert cloud is not None
        self._sent.add(block)
        tokens = kv.shape[3]
        return lambda _: cloud.send(block, name, ids[number * tokens : (number + 1) * tokens], kv)

    def session(self, turn: int | None) -> TurnSession:
        """Returns the session of the turn at work, once all is there that is read for it. Raises KvferryError for
        another turn."""
        if self._session is None or turn != self.number:
            raise KvferryError(f"turn {turn} has not begun")
        self._was_read.wait()
        if self._closed:
            raise KvferryError("the run has ended")
        return self._session

    def load(self, turn: int | None, chunk: int, keys: Any, values: Any) -> None:
        """Takes in a chunk that was fetched, by its flat index in (block, layer, KV head). What lost a race may come
        after its turn."""
        if turn == self.number and self._session is not None and self._session.session is not None:
            kv = self._session.kv
            rest, head = divmod(chunk, kv.heads)
            self._session.session.load(*divmod(rest, kv.layers), head, keys, values)

    def place(self, extents: Extents, data: Data, turn: int | None) -> None:
        """Takes in blocks that were read, or layers of them. What lost a race may come after its turn."""
        assert extents.blocks is not None
        if turn == self.number and self._session is not None:
            for (offset, _), block, view in zip(extents, extents.blocks, data.views, strict=True):
                _take_in(self._session, self._turns[self.number].blocks.index(block), offset % self._place_bytes, view)
        data.release()
        self._awaited -= set(extents.blocks)
        if not self._awaited:
            self._was_read.set()

    def source(self, extents: Extents) -> memoryview:
        """Returns the bytes of blocks that are to be written, as they lie on storage: layer by layer keys and values,
        by heads and tokens."""
        assert extents.blocks is not None
        whole, at = aligned_memory(extents.n_bytes), 0
        for block, (_, length) in zip(extents.blocks, extents, strict=True):
            raw = self._of(block).cpu().contiguous().view(torch.uint8).numpy().ravel()
            whole[at : at + len(raw)] = memoryview(raw)
            at += length
        return whole[: extents.n_bytes]

    def close(self) -> None:
        """Nobody waits any more for what is read."""
        self._closed = True
        self._was_read.set()

    def _of(self, block: int) -> torch.Tensor:
        """KV that stays from before, or that the turn at work leaves."""
        kept = self._memory.get(block)
        if kept is not None:
            return kept
        assert self._session is not None
        return self._session.block_of(self._turns[self.number].leaves.index(block))


def _take_in(turn: TurnSession, number: int, offset: int, view: memoryview) -> None:
    """Takes in a block of a turn, by its number there, or layers of it from where they begin in its place."""
    kv = turn.kv
    shape = (2, kv.heads, turn.block, kv.head_dim)
    layer_bytes = int(np.prod(shape)) * kv.dtype.itemsize
    layers = min(kv.layers, len(view) // layer_bytes)
    raw = torch.from_numpy(np.frombuffer(view, np.uint8, layers * layer_bytes).copy())
    came = raw.view(kv.dtype).reshape(layers, *shape)
    if layers == kv.layers:
        turn.put_block(number, came)
    elif turn.session is not None:
        first = offset // layer_bytes
        for n, (keys, values) in enumerate(came):
            turn.session.load(number, first + n, None, keys, values)
