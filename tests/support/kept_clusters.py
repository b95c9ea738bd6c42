"""Clusters whose file is kept: what a run would do to the file and its log, at random, without a model."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from fake_machine import even_sizes

from kvferry.backends.live.decoding.entry_log import ClusterLog
from kvferry.disk.kv_file import KvFile
from kvferry.disk.kv_log import KvLog, last_block
from kvferry.disk.kv_record import KvHeader
from kvferry.layouts.cluster_layout import ClusterLayout, PlacedClusters
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.splits import ClusterSplit, Joined

# Of a row: keys and values of one head with two numbers of 4 bytes.
ENTRY_BYTES = 16
# What a reader is to find: by layer and row, the clusters' tokens; all else is in none.
State = dict[tuple[int, int], dict[int, list[int]]]


def header_of(layout: ClusterLayout, context: int, identity: str = "0" * 32) -> KvHeader:
    return KvHeader(
        identity=identity,
        model="made up",
        layers=layout.layers,
        sequences=layout.sequences,
        heads=layout.heads,
        row_heads=1,
        head_dim=2,
        dtype="float32",
        context=context,
        data_bytes=-(-layout.file_bytes // 4096) * 4096,
        block_bytes=4096,
        clusters=True,
    )


def entry(layer: int, row: int, token: int) -> bytes:
    """Every entry has other bytes."""
    return np.array([layer, row, token, layer * 10_000 + row * 100 + token + 0.5], np.float32).tobytes()


class KeptClusters:
    """``wanted`` has what a reader is to find after the prompts and each step, ``ends`` where the log ended then, and
    ``writes`` what was written afterwards: offsets and bytes, of the step that the log had just been told."""

    def __init__(self, folder: Path, layout: ClusterLayout, context: int) -> None:
        self.path, self.layout = folder / "kv.bin", layout
        self.places: PlacedClusters = layout.start()  # type: ignore[assignment]
        self.header = header_of(layout, context)
        self._file = KvLog(self.path)
        self._file.begin(self.header)
        self._log = ClusterLog(self._file, layers=layout.layers, rows=layout.rows, context=context)
        self.state: State = {place: {} for place in np.ndindex(layout.layers, layout.rows)}
        self.waiting: dict[tuple[int, int, int], list[int]] = {}
        self.token = context
        self.wanted: list[State] = []
        self.ends, self.writes = list[int](), [list[tuple[int, bytes]]()]
        sizes = even_sizes(context, layout.first_blocks)
        for layer in range(layout.layers):
            labels = np.tile(np.arange(context) % layout.first_blocks, (layout.rows, 1))
            for row, of_row in enumerate(labels):
                self.state[layer, row] = {
                    block: np.flatnonzero(of_row == block).tolist() for block in range(layout.first_blocks)
                }
            self.places.arranged(layer, np.tile(sizes, (layout.rows, 1)), labels)
            pieces = self.places.whole(layer)
            contents = self._contents(pieces)
            self._log.clustered(layer, labels, pieces, b"".join(contents.values()))
            self._write(pieces, contents)
        self._finish()

    def step(self, choose: Callable[[int], int]) -> None:
        """A token more in every row, which joins a cluster, waits for one to be split, or is split with it.
        `choose(n)` is below n."""
        joined: list[list[Joined]] = [[] for _ in range(self.layout.layers)]
        changes: list[Pieces] = []
        for (layer, row), clusters in self.state.items():
            block, what = choose(len(clusters)), choose(4)
            if what and self.places.full(layer, row):
                what = 0
            if what == 1:
                self.waiting.setdefault((layer, row, block), []).append(self.token)
                joined[layer].append(Joined(row, block, True))
            elif what == 0:
                clusters[block].append(self.token)
                joined[layer].append(Joined(row, block))
                changes.append(self.places.append(layer, row, block))
            else:
                changes.append(self._split(layer, row, block, choose))
        written = Pieces.together([Pieces.none(ENTRY_BYTES), *changes])
        assert not any(len(change.moves) for change in changes)
        contents = self._contents(written)
        entries = [[entry(layer, row, self.token) for row in range(self.layout.rows)] for layer in range(len(joined))]
        new = np.frombuffer(b"".join(map(b"".join, entries)), np.uint8)
        self._log.grown(joined, written, contents, new.reshape(*self.places.shape[:2], -1))
        self.token += 1
        self._finish()
        self.writes.append([])
        self._write(written, contents)

    def _split(self, layer: int, row: int, block: int, choose: Callable[[int], int]) -> Pieces:
        clusters = self.state[layer, row]
        before = clusters[block]
        tokens = [*before, *self.waiting.pop((layer, row, block), []), self.token]
        leaves = np.array([choose(2) == 1 for _ in tokens])
        leaves[choose(len(tokens))] = True
        if leaves.all():
            leaves[0] = False
        stay, leave = int((~leaves).sum()), int(leaves.sum())
        new, change = self.places.split(layer, row, block, stay, leave, leaves)
        self._log.split(layer, ClusterSplit(row, block, new, True, len(tokens)), leaves)
        clusters[block] = [token for token, goes in zip(tokens, leaves, strict=True) if not goes]
        clusters[new] = [token for token, goes in zip(tokens, leaves, strict=True) if goes]
        return change

    def close(self) -> None:
        self._file.close()

    def crashed(self, log_bytes: int, written: Callable[[int], bool]) -> KvFile:
        """As if the process had been killed when the log had so many bytes: all writes of steps before the last whole
        record had ended by then, and of that step's own those that `written` says. Raises what KvFile raises."""
        last = int(np.searchsorted(self.ends, log_bytes, side="right")) - 1
        data = bytearray(self.header.data_bytes) + last_block(self.header.identity)
        for step, writes in enumerate(self.writes[: last + 1]):
            for n, (offset, content) in enumerate(writes):
                if step < last or step == 0 or written(n):
                    data[offset : offset + len(content)] = content
        folder = self.path.parent / "crashed"
        folder.mkdir(exist_ok=True)
        (folder / "kv.bin").write_bytes(data)
        (folder / "kv.bin.log").write_bytes(self.log[:log_bytes])
        return KvFile(folder / "kv.bin")

    @property
    def log(self) -> bytes:
        return self.path.with_name("kv.bin.log").read_bytes()

    def check(self, found: KvFile, step: int) -> None:
        """It is what there was after this step: each entry once, in its cluster and place there, byte for byte."""
        assert (found.step, found.tokens) == (step, self.header.context + step)
        for (layer, row), clusters in self.wanted[step].items():
            assert {n: part.tolist() for n, part in found.clusters(layer, row).items()} == clusters
            raw = b"".join(entry(layer, row, token) for token in range(found.tokens))
            assert found.raw(layer, row).tobytes() == raw

    def _contents(self, pieces: Pieces) -> dict[tuple[int, int, int, int], bytes]:
        found = {}
        columns = (pieces.layers, pieces.rows, pieces.blocks, pieces.firsts, pieces.tokens, pieces.down)
        for layer, row, block, first, count, down in zip(*(of.tolist() for of in columns), strict=True):
            parts = [entry(layer, row, token) for token in self.state[layer, row][block][first : first + count]]
            assert len(parts) == count
            found[layer, row, block, first] = b"".join(reversed(parts) if down else parts)
        return found

    def _write(self, pieces: Pieces, contents: dict[tuple[int, int, int, int], bytes]) -> None:
        self.writes[-1] += zip(pieces.offsets.tolist(), contents.values(), strict=True)

    def _finish(self) -> None:
        self.ends.append(self._file.n_bytes)
        self.wanted.append({place: {n: [*of] for n, of in some.items()} for place, some in self.state.items()})
