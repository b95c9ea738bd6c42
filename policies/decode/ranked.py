"""A machine's answer as a selector sees it: the best KV blocks of one layer, and among how many they were."""

from dataclasses import dataclass

import numpy as np

from kvferry.policies.decode.rows import BlockRows


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The ``blocks`` that a machine answered for a layer, of the ``stored_blocks`` that each row has; a sequence has
    ``stored_tokens`` tokens, its newest included, which may belong to no block yet.

    ``tokens`` are in each of the blocks, like their ids; None: ``block_tokens`` in every one. ``scores`` are like the
    ids, too, and compare within a row; None: the answer comes from a recording without scores. ``most_blocks`` is how
    many a row may want; None: any number.
    """

    blocks: BlockRows
    layer: int
    block_tokens: int
    stored_blocks: int
    stored_tokens: int
    tokens: np.ndarray | None = None
    scores: np.ndarray | None = None
    most_blocks: int | None = None

    def best_with(self, forced: np.ndarray) -> BlockRows:
        """Returns as many blocks in every row as the answer has, ascending: the `forced` ones, and the best of the
        rest. Without scores, newer blocks count as better. ValueError where more are forced than the answer has."""
        ids = self.blocks.ids
        forced = np.unique(forced)
        rest = ids.shape[1] - len(forced)
        if rest < 0:
            raise ValueError(f"{len(forced)} blocks are forced, a row has {ids.shape[1]}")
        scores = ids if self.scores is None else self.scores
        order = np.argsort(-np.where(np.isin(ids, forced), -np.inf, scores), axis=1, kind="stable")[:, :rest]
        found = (np.broadcast_to(forced, (len(ids), len(forced))), np.take_along_axis(ids, order, 1))
        return BlockRows(np.sort(np.concatenate(found, axis=1), axis=1))
