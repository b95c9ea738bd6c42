"""Critical tokens while decoding: what a modelled machine answers Select ops with, token by token or in groups.

Each sequence, layer and head selects as many tokens in every step; some tokens are wanted far more often than others,
and neighbouring steps share most of theirs (KVSwap 3.4.2). Groups are those of the tokens: see ``CriticalTokens``.
Left out: tokens made while decoding (systems keep the last ones in memory), any likeness between heads or layers,
and drift of what is popular.
"""

from pathlib import Path

import numpy as np

from kvferry.machine.ops import Selecting
from kvferry.specs.errors import InputError
from kvferry.traces.chance import Source, generator
from kvferry.traces.selections import SelectionStream

# Resolution of the table that maps an even draw to a rank.
_DRAWS = 1 << 14


class CriticalTokens:
    """A seeded process over steps: `selected` tokens of `context`, and their groups of `group_tokens`.

    The context is cut into short blocks, dealt at random to as many places as tokens are selected. A place holds a
    token of its own blocks, chosen in proportion to 1 / rank^skew; it keeps it from one step to the next with a chance
    that makes neighbouring steps share `overlap` of their tokens (more where chance alone does), and chooses anew
    otherwise. Places are bound into
    sets of `group_tokens`; of every set one place is the strongest, and the group around its token is selected; when
    that place chooses anew, another may become the strongest. So every selected group is that of a selected token,
    and the tokens do not depend on how they are grouped. Only where a place's blocks are shorter than a group can two
    groups be the same; the next free one then stands in.

    ValueError when there are not enough to select.
    """

    def __init__(
        self,
        *,
        layers: int,
        sequences: int,
        heads: int = 1,
        context: int,
        selected: int,
        group_tokens: int = 1,
        overlap: float,
        skew: float,
        seed: int,
    ) -> None:
        if selected % group_tokens:
            raise ValueError(f"{selected} tokens are no whole number of groups of {group_tokens}")
        if not 1 <= selected <= context:
            raise ValueError(f"{selected} of {context} tokens cannot be selected")
        if group_tokens > 1 and selected // group_tokens > context // group_tokens:
            raise ValueError(f"{context} tokens have no {selected // group_tokens} groups of {group_tokens}")
        self.layers, self.sequences, self.heads = layers, sequences, heads
        self.group_tokens, self.groups = group_tokens, selected // group_tokens
        self.step = -1
        self._places, rows = selected, layers * sequences * heads
        # Half of what a place has, or less: so that hot tokens of a place lie apart.
        self._block = 1 << max(0, (context // (2 * selected)).bit_length() - 1)
        blocks = context // self._block
        self.context_groups = context // group_tokens
        own, self._longer = divmod(blocks, selected)
        self._own = own
        short, long = _popularity(own * self._block, skew), _popularity((own + 1) * self._block, skew)
        longer = self._longer / selected
        again = (1 - longer) * float((short**2).sum()) + longer * float((long**2).sum())
        # A rank is looked up by an even draw.
        self._rank_of = np.stack([_ranks(short), _ranks(long)]).ravel()
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must lie in 0..1, got {overlap}")
        self._stay = max(0.0, (overlap - again) / (1 - again)) if again < 1 else 1.0
        places = generator(Source.CRITICAL_PLACES, seed)
        self._dealt = places.permuted(np.tile(np.arange(blocks, dtype=np.int32), (rows, 1)), axis=1).ravel()
        self._blocks = blocks
        self._rng = generator(Source.CRITICAL_STEPS, seed)
        self._tokens = np.zeros(rows * selected, np.int32)
        self._strong = generator(Source.CRITICAL_STRONGEST, seed)
        self._strongest = self._strong.integers(0, group_tokens, rows * self.groups)
        # Positions in _tokens of the strongest places: row, place within the set's, set.
        sets = np.arange(rows * self.groups)
        self._first_place = sets // self.groups * selected + sets % self.groups
        self._choose(np.arange(rows * selected))

    def __call__(self, op: Selecting) -> np.ndarray:
        """int32[batch, heads, groups]: the groups of an op's step and layer. Steps may only go forward."""
        if op.step != self.step:
            self.advance(op.step)
        return self.selected()[op.layer]

    def advance(self, step: int) -> None:
        if step < self.step:
            raise ValueError(f"step {step} is over; the stream stands at {self.step}")
        while self.step < step:
            self.step += 1
            if self.step:
                leaves = self._rng.random(self._tokens.size, np.float32) >= self._stay
                self._choose(np.flatnonzero(leaves))
        self._selected = self._find_selected()

    def tokens(self) -> np.ndarray:
        """int32[layers, sequences, heads, selected]: the present step's."""
        return self._tokens.reshape(self.layers, self.sequences, self.heads, self._places)

    def selected(self) -> np.ndarray:
        """int32[layers, sequences, heads, groups], distinct along groups; not sorted."""
        return self._selected

    def _choose(self, who: np.ndarray) -> None:
        """New tokens for these places."""
        row = who // self._places
        place = who - row * self._places
        longer = place < self._longer
        rank = self._rank_of[self._rng.integers(0, _DRAWS, who.size) + _DRAWS * longer]
        # Neighbours in rank lie in different blocks.
        own = self._own + longer
        turn = rank // own
        block = self._dealt[row * self._blocks + place + (rank - turn * own) * self._places]
        tokens = block * self._block + ((5 * turn + block) & (self._block - 1))
        another = tokens != self._tokens[who]
        self._tokens[who] = tokens
        if self.group_tokens > 1:
            place, row = place[another], row[another]
            sub = place // self.groups
            group = place - sub * self.groups
            sets = row * self.groups + group
            sets = sets[self._strongest[sets] == sub]
            self._strongest[sets] = self._strong.integers(0, self.group_tokens, sets.size)

    def _find_selected(self) -> np.ndarray:
        shape = self.layers, self.sequences, self.heads, self.groups
        if self.group_tokens == 1:
            return self._tokens.reshape(shape).copy()
        tokens = self._tokens[self._first_place + self._strongest * self.groups]
        groups = np.minimum(tokens // self.group_tokens, self.context_groups - 1).astype(np.int32)
        if self._block % self.group_tokens:
            _make_distinct(groups.reshape(-1, self.groups), self.context_groups)
        return groups.reshape(shape)


class RecordedSelections:
    """Answers Select ops from a recorded stream, which starts again at its end; sequences are steps apart.

    Raises InputError when the stream was recorded with other dimensions than the op's.
    """

    def __init__(self, stream: SelectionStream, sequences: int) -> None:
        self._stream = stream
        self._apart = max(1, len(stream.ids) // sequences) * np.arange(sequences)

    @classmethod
    def load(cls, path: Path, sequences: int) -> "RecordedSelections":
        return cls(SelectionStream.load(path), sequences)

    def __call__(self, op: Selecting) -> np.ndarray:
        steps, layers, heads, k = self._stream.ids.shape
        # Recorded streams may know groups that were written while decoding, besides those of the context.
        if (op.heads, op.k) != (heads, k) or op.groups > self._stream.groups or op.layer >= layers:
            recorded = f"{layers} layers, {heads} heads, {k} of {self._stream.groups} groups"
            raise InputError(
                f"workload.selections: recorded with {recorded}; layer {op.layer} of this run wants {op.k} of"
                f" {op.groups} groups for {op.heads} heads"
            )
        return self._stream.ids[(op.step + self._apart) % steps, op.layer]


def _popularity(size: int, skew: float) -> np.ndarray:
    weights = np.arange(1, size + 1, dtype=float) ** -skew
    return weights / weights.sum()


def _ranks(popularity: np.ndarray) -> np.ndarray:
    """The rank that each of the draws stands for."""
    draws = (np.arange(_DRAWS) + 0.5) / _DRAWS
    return np.minimum(np.cumsum(popularity).searchsorted(draws), popularity.size - 1).astype(np.int32)


def _make_distinct(chosen: np.ndarray, groups: int) -> None:
    """Where places of one row have tokens of one group, the later ones take the next free group: contexts so short
    that a place owns less than a group."""
    ordered = np.sort(chosen, axis=1)
    for row in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
        _, first = np.unique(chosen[row], return_index=True)
        later = np.setdiff1d(np.arange(chosen.shape[1]), first)
        free = np.setdiff1d(np.arange(groups), chosen[row])
        # Each at the next free one, or at the one after when that is taken too.
        at = np.searchsorted(free, np.sort(chosen[row, later]))
        at = np.maximum.accumulate(at - np.arange(at.size)) + np.arange(at.size)
        chosen[row, later] = free[np.minimum(at, free.size - at.size + np.arange(at.size))]
