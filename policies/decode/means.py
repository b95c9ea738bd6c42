"""K-means and 2-means of many sets of vectors at once: how clusters of keys are made, and split (DynaKV 4, 7)."""

from collections.abc import Callable

import numpy as np

# Called with how much of some work is done, of how much.
Told = Callable[[int, int], None]

# Rounds of assigning and averaging, after which clusters are taken as they are.
KMEANS_ROUNDS, SPLIT_ROUNDS = 8, 8
# Distances that are held at once, in numbers: a chunk of rows' times their vectors and centres.
_CHUNK = 1 << 24
# Multiplications of a product that are done at once: so few that the numerics library takes one thread for them. Where
# processors have other work, its threads wait for each other for a hundred times as long as they compute.
_ONE_THREAD = 1 << 18
# Numbers of a tile of distances: as many as a processor's own cache holds.
_TILE = 1 << 17


def kmeans(
    vectors: np.ndarray, clusters: int, rounds: int = KMEANS_ROUNDS, told: Told = lambda done, of: None
) -> np.ndarray:
    """Returns int32[rows, n]: the cluster, below `clusters`, of each of `vectors` [rows, n, width]. Every cluster has a
    vector at least: one that lost all of them takes the vector farthest from its own centre. ValueError for fewer
    vectors than clusters.

    Centres begin at vectors spread evenly over the sequence, so that equal input gives equal clusters. `told` hears of
    rounds; clusters that no longer change take fewer."""
    rows, n, _ = vectors.shape
    if not 1 <= clusters <= n:
        raise ValueError(f"{n} vectors cannot make {clusters} clusters")
    each = max(1, _CHUNK // (n * clusters))
    parts, of = list[np.ndarray](), rounds * -(-rows // each)
    for at in range(0, rows, each):
        before = rounds * len(parts)
        told(before, of)
        part = vectors[at : at + each].astype(np.float32)
        parts.append(_kmeans(part, clusters, rounds, lambda done: told(before + done, of)))  # noqa: B023
    told(of, of)
    return np.concatenate(parts)


def _kmeans(vectors: np.ndarray, clusters: int, rounds: int, told: Callable[[int], None]) -> np.ndarray:
    rows, n, width = vectors.shape
    centres = vectors[:, np.linspace(0, n - 1, clusters).round().astype(int)]
    labels = np.full((rows, n), -1, np.int32)
    first = (np.arange(rows) * clusters)[:, None]
    for done in range(rounds):
        told(done)
        before = labels
        labels, apart = _nearest(vectors, centres)
        _fill_empty(labels, apart + (vectors**2).sum(-1), clusters)
        if (labels == before).all():
            break
        flat = (first + labels).ravel()
        counts = np.bincount(flat, minlength=rows * clusters)
        sums = [np.bincount(flat, vectors[..., d].ravel(), rows * clusters) for d in range(width)]
        centres = (np.stack(sums, -1) / counts[:, None]).reshape(rows, clusters, width).astype(np.float32)
    return labels


def _nearest(vectors: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centre that is nearest to each vector, and the squared distance but for the vector's own length,
    which does not decide which one is nearest."""
    rows, n, width = vectors.shape
    clusters = centres.shape[1]
    each = max(1, min(n, _ONE_THREAD // (width * clusters)))
    tall = each * max(1, _TILE // (each * clusters))
    labels, apart = np.empty((rows, n), np.int32), np.empty((rows, n), np.float32)
    # In place: fresh memory for every tile takes longer than the products.
    tile, places = np.empty((tall, clusters), np.float32), np.arange(tall)
    for row, (doubled, across) in enumerate(zip(2 * vectors, centres.swapaxes(1, 2).copy(), strict=True)):
        lengths = (centres[row] ** 2).sum(-1)
        for at in range(0, n, tall):
            part = doubled[at : at + tall]
            own = tile[: len(part)]
            even = len(part) // each * each
            np.matmul(part[:even].reshape(-1, each, width), across, out=own[:even].reshape(-1, each, clusters))
            np.matmul(part[even:], across, out=own[even:])
            np.subtract(lengths, own, out=own)
            labels[row, at : at + tall] = found = own.argmin(-1)
            apart[row, at : at + tall] = own[places[: len(part)], found]
    return labels, apart


def _fill_empty(labels: np.ndarray, squared: np.ndarray, clusters: int) -> None:
    """Give each cluster without a vector the farthest one of a cluster that has more."""
    counts = np.zeros((len(labels), clusters), int)
    np.add.at(counts, (np.arange(len(labels))[:, None], labels), 1)
    for row in np.flatnonzero((counts == 0).any(1)):
        farthest = iter(np.argsort(-squared[row], kind="stable"))
        for empty in np.flatnonzero(counts[row] == 0):
            taken = next(n for n in farthest if counts[row, labels[row, n]] > 1)
            counts[row, labels[row, taken]] -= 1
            counts[row, empty], labels[row, taken] = 1, empty


def two_means(vectors: np.ndarray, there: np.ndarray, rounds: int = SPLIT_ROUNDS) -> np.ndarray:
    """Returns bool[sets, n]: which of `vectors` [sets, n, width] leave, of the ones `there` (bool[sets, n]): the
    smaller of two parts, each nearer to its own mean. Of a set whose vectors are all equal the later half leaves. A set
    has two vectors at least.

    Means begin at the vector farthest from the common mean, and at the one farthest from that.
    """
    vectors = np.where(there[..., None], vectors, 0.0).astype(float, copy=False)
    n = np.maximum(there.sum(1), 1)[:, None]
    sets = np.arange(len(vectors))
    mean = vectors.sum(1) / n
    first = vectors[sets, _farthest(vectors, mean, there)]
    second = vectors[sets, _farthest(vectors, first, there)]
    # The later half, where nothing tells them apart.
    halves = there & (np.cumsum(there, axis=1) > n - n // 2)
    # No parts yet, so that the first ones are never taken for the second time.
    leaves = np.zeros_like(halves)
    apart = (first != second).any(-1)
    total = vectors.sum(1)
    for _ in range(rounds):
        before = leaves
        # Nearer to the second mean than to the first: on its side of the plane between both.
        across = second - first
        middle = ((second + first) * across).sum(-1) / 2
        leaves = (np.einsum("snd,sd->sn", vectors, across) > middle[:, None]) & there
        if (leaves == before).all():
            break
        count = leaves.sum(1)[:, None]
        # A part that lost all its vectors keeps its mean, and the next round cuts again.
        sums = np.einsum("snd,sn->sd", vectors, leaves)
        second = np.where(count > 0, sums / np.maximum(count, 1), second)
        first = np.where(count < n, (total - sums) / np.maximum(n - count, 1), first)
    count = leaves.sum(1)
    smaller = np.where((2 * count > n[:, 0])[:, None], there & ~leaves, leaves)
    return np.where((apart & (count > 0) & (count < n[:, 0]))[:, None], smaller, halves)


def _farthest(vectors: np.ndarray, point: np.ndarray, there: np.ndarray) -> np.ndarray:
    squared = ((vectors - point[:, None]) ** 2).sum(-1)
    return np.asarray(np.where(there, squared, -1.0).argmax(1))
