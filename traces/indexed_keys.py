"""Keys that an index scores, generated or recorded: what a modelled machine answers Select ops with where a selector
brings its index."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvferry.machine.answers import Selection
from kvferry.machine.ops import DecodeAttention, Selecting
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.key_index import KEY_INDEXES, IndexShape
from kvferry.traces.key_scores import best_entries


class DrawnKeys(Protocol):
    """A KeyProcess or a KeyRecording."""

    @property
    def width(self) -> int: ...
    def kinds(self, layers: int) -> int: ...
    def drawn(
        self, tokens: int, kinds: int, sequences: int, heads: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True, slots=True, eq=False)
class NoKeys:
    """Stands in for keys where none are kept: vectors without numbers, in as many kinds of layers as `process` has."""

    process: DrawnKeys
    width: int = 0

    def kinds(self, layers: int) -> int:
        return self.process.kinds(layers)

    def drawn(self, tokens: int, kinds: int, sequences: int, heads: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        nothing = np.zeros((kinds * sequences * heads, tokens, 0), np.float32)
        return nothing, nothing


class IndexedKeys:
    """Answers Select ops with the KV blocks that the index of `spec` scores best, among the ones that are there when
    their step comes. Layers of one kind are answered alike. The same keys as those of ClusteredKeys with the same
    seed."""

    def __init__(
        self,
        process: DrawnKeys,
        spec: IndexSpec,
        *,
        layers: int,
        sequences: int,
        context: int,
        output: int,
        room_blocks: int,
        seed: int,
    ) -> None:
        self.kinds, self._spec = process.kinds(layers), spec
        self._context, self._skipped, self._step = context, 0, -1
        keys, queries = process.drawn(context + output, self.kinds, sequences, spec.heads, seed)
        by_row = self.kinds, sequences, spec.heads
        self._keys = keys.reshape(*by_row, *keys.shape[1:])
        # A recording has the query heads of each KV head one by one, a process has one of them.
        per_head = queries.shape[2] if queries.ndim == 4 else 1
        self._queries = queries.reshape(*by_row, context + output, per_head, -1 if process.width else 0)
        self.index = KEY_INDEXES[spec.kind](
            IndexShape(
                layers=self.kinds,
                sequences=sequences,
                heads=spec.heads,
                kv_heads=spec.heads,
                query_heads=spec.heads * per_head,
                head_dim=process.width,
                block_tokens=spec.block_tokens,
                room_blocks=room_blocks,
            ),
            **dict(spec.parameters),
        )
        # By kind: blocks whose keys the index has, and what it was answered in this step.
        self._kept = [0] * self.kinds
        self._answers: dict[int, Selection] = {}
        # The token whose step that was.
        self._answered = -1

    def go_on(self) -> None:
        """To the next token, without any time."""
        self._skipped += 1

    def watch(self, told: Callable[[int, int], None]) -> None:
        pass

    def __call__(self, op: Selecting) -> Selection:
        """Blocks ascend, with their scores."""
        if op.step != self._step:
            self._step, self._answers = op.step, {}
        self._answered = self._entry
        kind = op.layer % self.kinds
        if kind not in self._answers:
            self._answers[kind] = self._best(kind, int(op.groups), int(op.k))
        return self._answers[kind]

    def recall(self, tokens: float) -> tuple[float, float] | None:
        """Returns two means over rows: the share of the stored tokens that the query under way wants most that is in
        the blocks which were chosen for it, of as many as these hold; and their share of all. None where keys have no
        numbers, or this step has chosen nothing."""
        if not self._answers or self._answered != self._entry or not self.index.shape.head_dim:
            return None
        per_block, had, share = self._spec.block_tokens, [], []
        for kind, answer in self._answers.items():
            stored = self._kept[kind] * per_block
            chosen = answer.ids.reshape(-1, answer.ids.shape[-1])
            keys, queries = self._keys[kind][:, :, :stored], self._queries[kind][:, :, self._entry]
            rows = queries.reshape(len(chosen), *queries.shape[2:])
            wanted = best_entries(
                keys.reshape(len(chosen), stored, -1),
                rows[:, 0] if rows.shape[1] == 1 else rows,
                chosen.shape[1] * per_block,
            )
            there = np.zeros((len(chosen), self._kept[kind]), bool)
            np.put_along_axis(there, chosen.astype(np.int64), True, 1)
            had.append(np.take_along_axis(there, wanted // per_block, 1).mean())
            share.append(there.mean())
        return float(np.mean(had)), float(np.mean(share))

    def attended(self, op: DecodeAttention) -> None:
        """Tell the index what a layer's attention takes in, where it wants to know."""
        if op.kv is None or op.kv.ids is None or op.kv.layer >= self.kinds or not self.index.attends:
            return
        shape, kind = self.index.shape, op.kv.layer
        ids = op.kv.ids.reshape(shape.sequences, shape.heads, -1)
        tokens = (ids[..., None] * shape.block_tokens + np.arange(shape.block_tokens)).reshape(*ids.shape[:2], -1)
        keys = np.take_along_axis(self._keys[kind], tokens[..., None], 2)
        products = np.einsum("bhnd,bhgd->bhgn", keys, self._queries[kind][:, :, self._entry]) * shape.head_dim**-0.5
        weights = np.exp(products - products.max(-1, keepdims=True))
        shares = (weights / weights.sum(-1, keepdims=True)).sum(2)
        self.index.attended(kind, ids, shares.reshape(*ids.shape, shape.block_tokens).sum(-1))

    @property
    def _entry(self) -> int:
        """Returns the place of the token under way among all tokens."""
        return self._context + self._skipped + self._step

    def _best(self, kind: int, blocks: int, k: int) -> Selection:
        per_block, kept = self._spec.block_tokens, self._kept[kind]
        if blocks > kept:
            self.index.keep(kind, kept, self._keys[kind][:, :, kept * per_block : blocks * per_block])
            self._kept[kind] = blocks
        queries = self._queries[kind][:, :, self._entry].reshape(
            self.index.shape.sequences, self.index.shape.query_heads, -1
        )
        scores = self.index.chosen_scores(kind, queries, blocks, self._spec)
        best = np.argpartition(-scores, k - 1, axis=-1)[..., :k]
        best.sort(axis=-1)
        return Selection(best.astype(np.int32), scores=np.take_along_axis(scores, best, -1).astype(np.float32))
