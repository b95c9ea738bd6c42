"""A run's clusters as an upkeep maintains them while a token is decoded, layer by layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Clustered, ClusterSplit, SplitParts
from kvferry.policies.decode.upkeep import Ahead, Kept, Learned, Update


@dataclass(frozen=True, slots=True, eq=False)
class Regroup:
    """The `tokens` newest tokens of every row, which are in memory, become `clusters` clusters, the first of them
    number `first`. With ``whole`` they are all tokens that there are, and lie where KV lies: ``read`` is what no query
    asked for."""

    tokens: int
    clusters: int
    first: int
    whole: bool = False
    read: BlockRows | None = None


# Work that a layer's new keys lead to, most often none.
Maintenance = Sequence[ClusterSplit] | Regroup


class OfStep(NamedTuple):
    """A step of a layer: where each row's new key belongs (int[rows]; None: not asked), how far it is from that
    centroid (squared, float[rows]), and what was retrieved."""

    layer: int
    ids: np.ndarray | None
    squared: np.ndarray | None
    found: Lookup


class KeysAhead(Ahead, Protocol):
    """Tells keys' clusters. A place is one of the layers that are told apart, a row and a cluster."""

    def nearest(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns cluster of each new key, and squared distance to it, each [kinds * rows]."""
        ...

    def retrieved(self, layers: np.ndarray, rows: np.ndarray, clusters: np.ndarray, tokens: float) -> np.ndarray:
        """Returns bool: which of these places are among the best of their rows, taken until they hold `tokens`."""
        ...

    def split(self, splits: Sequence[tuple[int, ClusterSplit]]) -> SplitParts:
        """Carries out splits in these layers."""
        ...

    def join(self, layers: np.ndarray, rows: np.ndarray, clusters: np.ndarray, *, waiting: bool) -> None:
        """New keys of these rows join their clusters, or wait for them."""
        ...

    def group(self, tokens: int, clusters: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        """The newest `tokens` of every row become `clusters` clusters, from number `first` on: int64[kinds * rows,
        clusters] tokens in each, and int[kinds * rows, tokens] the cluster of each, counted from `first`."""
        ...


@runtime_checkable
class BestAhead(Protocol):
    """Tells all that a token retrieves."""

    def best(self, tokens: float) -> np.ndarray:
        """Returns bool[kinds * rows, clusters]: the best of each row, taken until they hold `tokens`, as far as any row
        has clusters."""
        ...


class KeptClusters(ABC):
    """A Kept whose blocks are clusters, in `places`. Each step maintains every layer, then ``append`` sums up."""

    def __init__(self, places: PlacedClusters) -> None:
        self.places = places

    def stored(self, layer: int) -> int:
        return self.places.most(layer)

    def in_all_rows(self, layer: int) -> int:
        return self.places.fewest(layer)

    def recent(self, layer: int) -> int:
        return 0

    def tokens_of(self, layer: int, blocks: BlockRows) -> np.ndarray:
        return self.places.tokens_of(layer, blocks.spread(np.arange(blocks.rows)), blocks.ids)

    def filled(self, layer: int, found: Clustered) -> None:
        """Takes in the context's clusters of a layer."""
        self.places.arranged(layer, found.tokens, found.labels, found.retrieved)

    @abstractmethod
    def maintain(self, layer: int, ids: np.ndarray | None, squared: np.ndarray | None, found: Lookup) -> Maintenance:
        """Decides about a layer by its step, as OfStep has it."""

    def maintain_each(self, steps: Sequence[OfStep]) -> Sequence[Maintenance]:
        """The same of several layers."""
        return [self.maintain(*step) for step in steps]

    @abstractmethod
    def maintain_like(self, layers: Sequence[int], first: int) -> None:
        """Repeats for these layers what was decided for the `first`, which has the same clusters."""

    @abstractmethod
    def maintained(self, layer: int, found: SplitParts | Clustered) -> None:
        """Learns what came of the splits or of the regrouping."""

    @abstractmethod
    def append(self, learned: Learned) -> Update: ...

    @abstractmethod
    def skip(self, tokens: int, stored: int, keys: KeysAhead, wanted: Callable[[int], float]) -> None: ...


def clusters_of(kept: Kept) -> KeptClusters:
    """Returns the same, where blocks are clusters."""
    assert isinstance(kept, KeptClusters), "blocks of consecutive tokens are not maintained"
    return kept
