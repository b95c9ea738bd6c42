"""The log of a KV file, written while a batch decodes: by entries, whether KV blocks are clusters or not."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvferry.backends.live.decoding.cluster_members import ClusterMembers, Place
from kvferry.backends.live.decoding.written import Bytes
from kvferry.disk.block_sums import row_sums
from kvferry.disk.kv_log import KvLog
from kvferry.disk.kv_record import KvRecord
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.splits import ClusterSplit, Joined


class EntryLog:
    """Logs KV blocks of one token, which never change their place. ``rows`` in each layer; prompts of ``context``
    tokens.

    A step's entries are logged as they come, since they may be in memory alone for long.
    """

    def __init__(self, log: KvLog, *, layers: int, rows: int, context: int) -> None:
        self._log, self._layers, self._rows = log, layers, rows
        self._context = self._token = context

    def prompts(self, layer: int, entries: np.ndarray, offsets: np.ndarray) -> None:
        """Entries uint8[rows, context, bytes] of a layer are about to be written at int64[rows, context]."""
        rows, tokens = np.indices(offsets.shape).reshape(2, -1)
        placed = np.stack([layer * self._rows + rows, tokens], 1)
        whole = entries.reshape(len(placed), -1)
        self._log.prompts(self._record(layer, (), placed, offsets.ravel(), (), whole[:0], row_sums(whole)))

    def step(self, entries: np.ndarray, offsets: np.ndarray) -> None:
        """A token's entries uint8[layers, rows, bytes] are about to be written at int64[layers * rows]."""
        new = self._new
        self._log.step(self._record(self._token, (), new, offsets, new, entries.reshape(len(new), -1)))
        self._token += 1

    @property
    def _new(self) -> np.ndarray:
        """Returns int64[rows of all layers, 2]: the entries of the token under way."""
        rows = np.arange(self._layers * self._rows)
        return np.stack([rows, np.full_like(rows, self._token)], 1)

    @staticmethod
    def _record(
        number: int,
        members: Sequence[np.ndarray],
        placed: np.ndarray,
        offsets: np.ndarray,
        held: np.ndarray | Sequence[int],
        entries: np.ndarray,
        sums: np.ndarray | Sequence[int] = (),
    ) -> KvRecord:
        return KvRecord(
            number=number,
            members=np.concatenate(members, axis=0) if len(members) else np.empty((0, 3), np.int64),
            placed=placed,
            offsets=offsets,
            sums=np.asarray(sums, np.uint64),
            held=np.asarray(held, np.int64),
            entries=entries,
        )


class ClusterLog(EntryLog):
    """Logs clusters: keeps in memory which tokens are whose. An entry of the prompts is logged before the file
    loses it where it was written first."""

    def __init__(self, log: KvLog, *, layers: int, rows: int, context: int) -> None:
        super().__init__(log, layers=layers, rows=rows, context=context)
        self._members = ClusterMembers(layers=layers, context=context)
        # Entries of the prompts that the log has.
        self._logged = np.zeros((layers * rows, context), bool)

    def clustered(self, layer: int, labels: np.ndarray, pieces: Pieces, data: Bytes) -> None:
        """A layer of the prompts has become clusters, int[rows, context], and is about to be written."""
        self._members.prompts(layer, labels)
        rows, tokens, offsets = self._lying(pieces)
        whole = np.frombuffer(data, np.uint8).reshape(len(rows), -1)
        members = [self._told(layer, place) for place in self._members.taken_changed(layer)]
        placed = np.stack([rows, tokens], 1)
        self._log.prompts(self._record(layer, members, placed, offsets, placed[:0], whole[:0], row_sums(whole)))

    def split(self, layer: int, split: ClusterSplit, leaves: np.ndarray) -> None:
        """A cluster takes in what waited for it, and gives up what ``leaves``: bool, of all of it in its order."""
        self._members.split(layer, split, leaves)

    def grouped(self, layer: int, first: int, labels: np.ndarray, whole: bool) -> None:
        """The newest tokens become clusters, int[rows, tokens] counted from `first`; `whole`: all, cluster by cluster,
        and the newest at last."""
        self._members.grouped(layer, first, labels, whole)

    def grown(
        self,
        joined: Sequence[Sequence[Joined] | None],
        written: Pieces | None,
        contents: Mapping[tuple[int, int, int, int], Bytes],
        entries: np.ndarray,
    ) -> None:
        """A token's entries uint8[layers, rows, bytes] are in clusters, or wait; pieces with these contents are about
        to be written."""
        members = []
        for layer, of_layer in enumerate(joined):
            members += [self._told(layer, place) for place in self._members.taken_changed(layer)]
            for one in self._members.joined(layer, of_layer):
                members.append(np.array([[layer * self._rows + one.row, self._token, one.block]]))
        new, entry_bytes = self._new, entries.shape[-1]
        rows, tokens, offsets = self._lying(written) if written is not None else (new[:0, 0],) * 3
        # Entries that only the file had so far.
        saved = np.flatnonzero(tokens < self._context)
        saved = saved[~self._logged[rows[saved], tokens[saved]]]
        self._logged[rows[saved], tokens[saved]] = True
        held, parts = new, [entries.reshape(-1, entry_bytes)]
        if len(saved):
            assert written is not None
            columns = (written.layers, written.rows, written.blocks, written.firsts)
            keys = zip(*(column.tolist() for column in columns), strict=True)
            whole = b"".join(bytes(contents[key]) for key in keys)
            parts.append(np.frombuffer(whole, np.uint8).reshape(-1, entry_bytes)[saved])
            held = np.concatenate([new, np.stack([rows[saved], tokens[saved]], 1)])
        placed = np.stack([rows, tokens], 1)
        self._log.step(self._record(self._token, members, placed, offsets, held, np.concatenate(parts)))
        self._token += 1
        self._members.token = self._token

    def _told(self, layer: int, place: Place) -> np.ndarray:
        """Returns int64[tokens, 3]: a cluster's tokens, for the log."""
        tokens, (row, block) = self._members.of(layer, place), place
        return np.stack([np.full_like(tokens, layer * self._rows + row), tokens, np.full_like(tokens, block)], 1)

    def _lying(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns of each entry of pieces, as they lie in the file: row of all layers, token and offset, int64[n]."""
        columns = (pieces.layers, pieces.rows, pieces.blocks, pieces.firsts, pieces.tokens, pieces.down)
        parts = [np.empty(0, np.int64)]
        for layer, row, block, first, count, down in zip(*(of.tolist() for of in columns), strict=True):
            tokens = self._members.of(layer, (row, block))[first : first + count]
            assert len(tokens) == count, "a piece has more entries than its cluster"
            parts.append(tokens[::-1] if down else tokens)
        counts = pieces.tokens
        nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(pieces.layers * self._rows + pieces.rows, counts)
        return rows, np.concatenate(parts), np.repeat(pieces.offsets, counts) + nth * pieces.token_bytes
