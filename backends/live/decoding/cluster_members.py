"""Membership of tokens in clusters while a batch decodes, from what is said of clusters."""

from array import array
from collections.abc import Sequence

import numpy as np

from kvferry.policies.decode.splits import ClusterSplit, Joined

# A row and a cluster of it, in some layer.
Place = tuple[int, int]


class ClusterMembers:
    """Keeps the tokens of each cluster in the order in which they came to it. ``token`` is the one under way; prompts
    are of ``context`` tokens."""

    def __init__(self, *, layers: int, context: int) -> None:
        self.token = self._context = context
        # By layer: tokens of each cluster and tokens that wait for one, in their order, tokens that belong to none, and
        # clusters that are other ones by this step.
        self._members: list[dict[Place, array[int]]] = [{} for _ in range(layers)]
        self._waiting: list[dict[Place, list[int]]] = [{} for _ in range(layers)]
        self._recent: list[list[int]] = [[] for _ in range(layers)]
        self._changed: list[dict[Place, None]] = [{} for _ in range(layers)]

    def of(self, layer: int, place: Place) -> np.ndarray:
        """Returns int64[tokens]: those of a cluster."""
        return np.array(self._members[layer][place], np.int64)

    def with_waiting(self, layer: int, place: Place) -> np.ndarray:
        """Returns int64[tokens]: those of a cluster, and behind them those that wait for it."""
        return np.array([*self._members[layer][place], *self._waiting[layer].get(place, ())], np.int64)

    def taken_changed(self, layer: int) -> list[Place]:
        """Returns the clusters that are other ones since it was asked last."""
        changed = list(self._changed[layer])
        self._changed[layer].clear()
        return changed

    def prompts(self, layer: int, labels: np.ndarray) -> None:
        """A layer of the prompts has become clusters, int[rows, context]."""
        self._make(layer, 0, labels, [list(range(self._context))] * len(labels))

    def split(self, layer: int, split: ClusterSplit, leaves: np.ndarray) -> None:
        """A cluster takes in what waited for it, and gives up what ``leaves``: bool, of all of it in its order."""
        place = split.row, split.block
        came = [*self._waiting[layer].pop(place, []), *([self.token] if split.joins else [])]
        tokens = np.array([*self._members[layer].get(place, ()), *came], np.int32)
        self._put(layer, place, tokens[~leaves])
        if split.new is not None:
            self._put(layer, (split.row, split.new), tokens[leaves])

    def grouped(self, layer: int, first: int, labels: np.ndarray, whole: bool) -> None:
        """The newest tokens become clusters, int[rows, tokens] counted from `first`; `whole`: all, cluster by cluster,
        and the newest at last."""
        of_rows = [[*self._recent[layer], self.token] for _ in labels]
        self._recent[layer].clear()
        if whole:
            for (row, _), tokens in sorted(self._members[layer].items(), reverse=True):
                of_rows[row] = [*tokens, *of_rows[row]]
            self._members[layer].clear()
        self._make(layer, first, labels, of_rows)

    def joined(self, layer: int, of_layer: Sequence[Joined] | None) -> list[Joined]:
        """Returns the token under way has passed all layers: it joins clusters of this one, waits for them, or belongs
        to none. Returns where it joined one."""
        into = []
        for one in of_layer or ():
            place = one.row, one.block
            if one.delayed:
                self._waiting[layer].setdefault(place, []).append(self.token)
            else:
                self._members[layer].setdefault(place, array("i")).append(self.token)
                into.append(one)
        if of_layer is None:
            self._recent[layer].append(self.token)
        return into

    def _make(self, layer: int, first: int, labels: np.ndarray, tokens: Sequence[Sequence[int]]) -> None:
        for row, of_row in enumerate(labels):
            those = np.asarray(tokens[row], np.int32)
            for label in np.unique(of_row).tolist():
                self._put(layer, (row, first + label), those[of_row == label])

    def _put(self, layer: int, place: Place, tokens: np.ndarray) -> None:
        self._members[layer][place] = array("i", tokens.tolist())
        self._changed[layer][place] = None
