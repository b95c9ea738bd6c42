"""A layout in which two clusters share a pool of the file, growing inward from its ends (DynaKV 5.2)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvferry.layouts.cluster_layout import ClusterLayout, up
from kvferry.layouts.pieces import Moves, Pieces
from kvferry.layouts.shared_pools import SharedPools
from kvferry.layouts.stretched import Stretched


@dataclass(frozen=True, kw_only=True)
class DualHeadLayout(ClusterLayout):
    """A pool has twice the room of the largest cluster, of ``most_tokens``; one for a cluster that is larger has twice
    that cluster's. Where both clusters of a pool are wanted and ``whole_pairs``, they are read as one, with the room
    between them. The file has ``file_spare`` times the room of the pools that all pairs of blocks would take.
    """

    most_tokens: int
    whole_pairs: bool = True
    file_spare: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most_tokens < 1:
            raise ValueError(f"most_tokens, of the largest cluster, is 1 or more, got {self.most_tokens}")

    def pool_of(self, tokens: Any) -> Any:
        """Returns the bytes of a pool, or of each, whose larger cluster has `tokens`."""
        two = 2 * np.maximum(tokens, self.most_tokens) * self.token_bytes
        return up(two, max(self.alignment_bytes, self.page))

    @property
    def file_bytes(self) -> int:
        pools = -(-self.blocks // 2)
        return self.file_spare * self.all_rows * pools * int(self.pool_of(self.block_tokens + bool(self.more)))

    def start(self) -> "DualHead":
        return DualHead(self)


class DualHead(Stretched):
    """The first cluster of a pool grows upwards from its beginning, its partner downwards from its end. A part that
    leaves a cluster lies beside it, if that is alone, or beside another of its row that is alone and that it is wanted
    together with, the one that has been alone the shortest; otherwise it has a pool for itself until a partner comes. A
    cluster that opens, without a history, takes any that is alone. One that no longer fits beside its partner
    moves to a pool of its own."""

    like: DualHeadLayout

    def __init__(self, like: DualHeadLayout) -> None:
        super().__init__(like)
        self._shared = SharedPools(self._tokens, like.token_bytes, like.pool_of, like.file_bytes)

    @property
    def taken_bytes(self) -> int:
        return self._shared.places.file.end

    def check(self) -> None:
        super().check()
        self._shared.check()

    def _set_out(self) -> None:
        self._shared.places.wait()

    def _follow(self, first: np.ndarray) -> None:
        super()._follow(first)
        self._shared.follow(first)

    def _place(self, rows: np.ndarray, order: np.ndarray, members: np.ndarray | None) -> None:
        """Pairs clusters that come next to each other in the order."""
        tokens = np.take_along_axis(self._tokens[rows], order, axis=1)
        # Clusters that are not there come last, whatever the order says.
        last = np.argsort(tokens == 0, axis=1, kind="stable")
        order, tokens = np.take_along_axis(order, last, axis=1), np.take_along_axis(tokens, last, axis=1)
        if order.shape[1] % 2:
            order, tokens = (np.pad(part, ((0, 0), (0, 1))) for part in (order, tokens))
        pairs, sizes = order.reshape(len(rows), -1, 2), tokens.reshape(len(rows), -1, 2)
        there = sizes[..., 0] > 0
        n_bytes = self.like.pool_of(sizes.max(axis=2)[there])
        of_row = np.broadcast_to(rows[:, None], there.shape)[there]
        firsts, seconds, both = pairs[there][:, 0], pairs[there][:, 1], sizes[there][:, 1] > 0
        self._shared.fill(of_row, firsts, seconds, both, n_bytes)

    def _addresses(
        self, rows: np.ndarray, blocks: np.ndarray, firsts: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        unit, places = self.like.token_bytes, rows * self.like.blocks + blocks
        at, down = self._shared.places.at.take(places), self._shared.down.take(places)
        from_end = at + self._shared.n_bytes.take(places) - (firsts + tokens) * unit
        return np.where(down, from_end, at + firsts * unit), down

    def _pools(self, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray | None:
        return self._shared.places.at.take(rows * self.like.blocks + blocks) if self.like.whole_pairs else None

    def alone(self, layer: int, row: int) -> Sequence[int]:
        return self._shared.alone[self._row(layer, row)]

    def partners(self, layers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._shared.partner[self._row(layers, rows)]
        return found

    def pair(self, layer: int, row: int, block: int, other: int) -> Pieces:
        """One moves where the other is alone and has room beside it, otherwise both, to a pool of their own. What lay
        beside them is alone then."""
        flat = self._row(layer, row)
        self._shared.places.step()
        moving = self._shared.pair(flat, block, other)
        blocks, tokens = np.array(moving), self._tokens[flat, moving]
        rows = np.full(len(moving), flat)
        for one in moving:
            self._buffers.give_up(rows[:1], np.array([one]))
        self.counted.moved_bytes += int(tokens.sum()) * self.like.token_bytes
        return self._counted(self._pieces(rows, blocks, np.zeros_like(tokens), tokens))

    def _fits(self, rows: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray:
        held = self._shared.held(rows, blocks) + tokens
        return np.asarray(held * self.like.token_bytes <= self._shared.n_bytes[rows, blocks])

    def _make_room(self, rows: np.ndarray, blocks: np.ndarray, tokens: int, here: Any) -> tuple[Moves, np.ndarray]:
        anew = ~self._fits(rows, blocks, tokens)
        if not anew.any():
            return Moves.none(), anew
        here = np.broadcast_to(here, rows.shape)
        away = np.flatnonzero(anew & ~here)
        places = rows[away], blocks[away], np.zeros(len(away), np.int64), self._stored(rows[away], blocks[away])
        sources = self._addresses(*places)[0] if len(away) else None
        for n in np.flatnonzero(anew).tolist():
            row, block = int(rows[n]), int(blocks[n])
            self._shared.places.step()
            self._shared.leave(row, block)
            # What is not in memory moves as it lies.
            down = None if here[n] else bool(self._shared.down[row, block])
            self._shared.find(row, block, int(self._tokens[row, block]) + tokens, (), down)
        if sources is None:
            return Moves.none(), anew
        targets, _ = self._addresses(*places)
        moves = Moves(rows[away] // self.like.rows, sources, targets, places[3] * self.like.token_bytes)
        return moves, anew & here

    def _divide(
        self, row: int, block: int, new: int, stay: int, leave: int, beside: Collection[int]
    ) -> tuple[Moves, bool]:
        near = [other for other in self._shared.alone[row] if other in beside and other != block]
        # The cluster that it comes from is the first to be asked, where it has room for what came to it besides.
        both = (max(stay, int(self._tokens[row, block])) + leave) * self.like.token_bytes
        if block in self._shared.alone[row] and both <= self._shared.n_bytes[row, block]:
            near.append(block)
        self._shared.places.step()
        self._shared.find(row, new, leave, near)
        # It may have come to lie beside the block that it leaves.
        self._tokens[row, new] = leave
        place = np.array([row]), np.array([block])
        anew = not bool(self._fits(*place, stay - int(self._tokens[row, block]))[0])
        if anew:
            self._shared.leave(row, block)
            self._shared.find(row, block, stay, ())
        return Moves.none(), anew

    def _settle(self, row: int, new: int, tokens: int) -> Moves:
        self._shared.places.step()
        self._shared.find(row, new, tokens, self._shared.alone[row])
        return Moves.none()
