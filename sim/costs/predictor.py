"""SparKV's latency predictor (IV-C): a perceptron from <t, s, U_edge> to the seconds of sparse attention."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.machine.ops import Number
from kvferry.sim.costs.mlp import Descent, Mlp
from kvferry.sim.costs.samples import Samples
from kvferry.traces.arrays import load_arrays, packed_arrays, save_arrays
from kvferry.traces.chance import Source, generator
from kvferry.traces.chunks import CHUNK_TOKENS

HIDDEN = (48, 24)
# Lowest and highest value of each feature in training: none known.
_UNBOUNDED = np.array([[-np.inf] * 3, [np.inf] * 3])


@dataclass(frozen=True, eq=False)
class Predictor:
    """Predicts the attention latency of chunks of whole `CHUNK_TOKENS`; others in proportion.

    ``centre`` and ``spread`` (float[4]) standardise the three features and the target, which is the logarithm
    of the seconds: chunks differ by more than ten times, and a squared error of seconds would see only the
    longest. Trained on one head's chunks it adds up heads; trained on whole layers it prices those. ``bounds``
    (float[2, 3]): the lowest and highest features in training. An exponential does not extrapolate: ``seconds``
    clips features to these bounds, and scales in proportion when there are more blocks than in training. A load that
    was 0 in all of training therefore has no effect.
    """

    network: Mlp
    centre: np.ndarray
    spread: np.ndarray
    kv_heads: int = 1
    bounds: np.ndarray = field(default_factory=_UNBOUNDED.copy)

    @classmethod
    def trained(
        cls,
        samples: Samples,
        seed: int,
        *,
        kv_heads: int = 1,
        epochs: int = 60,
        batch: int = 32,
        rate: float = 0.02,
        momentum: float = 0.9,
    ) -> "Predictor":
        """Trains by stochastic gradient descent on the mean squared error, at a rate that falls to 0 along a cosine."""
        rng = generator(Source.COST_WEIGHTS, seed)
        table = np.column_stack([samples.token_chunk, samples.active_blocks, samples.load, np.log(samples.seconds)])
        centre, spread = table.mean(axis=0), table.std(axis=0)
        bounds = np.array([table[:, :3].min(axis=0), table[:, :3].max(axis=0)])
        # A feature that never varies has no spread: do not divide by zero.
        spread[spread == 0] = 1
        table = (table - centre) / spread
        inputs, targets = table[:, :3], table[:, 3]
        network = Mlp.drawn((3, *HIDDEN, 1), rng)
        descent = Descent(network, momentum)
        starts = range(0, len(targets), batch)
        steps = epochs * len(starts)
        for epoch in range(epochs):
            order = rng.permutation(len(targets))
            for number, start in enumerate(starts, epoch * len(starts)):
                rows = order[start : start + batch]
                descent.step(inputs[rows], targets[rows], rate * 0.5 * (1 + np.cos(np.pi * number / steps)))
        return cls(network, centre, spread, kv_heads, bounds)

    def predict_s(self, token_chunk: Number, active_blocks: Number, load: Number) -> np.ndarray:
        """Seconds of each chunk, the arguments broadcast; `token_chunk` counts from 1."""
        features = np.broadcast_arrays(token_chunk, active_blocks, load)
        inputs = np.column_stack([feature.ravel() for feature in features])
        logarithm = self.network((inputs - self.centre[:3]) / self.spread[:3]) * self.spread[3] + self.centre[3]
        return np.exp(logarithm).reshape(features[0].shape)

    def seconds(
        self,
        tokens: Number,
        active_blocks: Number,
        *,
        kv_heads: int = 1,
        context_tokens: Number,
        load: Number = 0.0,
    ) -> Any:
        """As AttentionModel."""
        launches = kv_heads / self.kv_heads
        share = tokens / CHUNK_TOKENS
        blocks = np.asarray(active_blocks / launches / share)
        low, high = self.bounds
        known = np.clip(blocks, low[1], high[1])
        token_chunk = np.clip(context_tokens // CHUNK_TOKENS + 1, low[0], high[0])
        predicted = self.predict_s(token_chunk, known, np.clip(load, low[2], high[2]))
        beyond = np.maximum(1.0, blocks / np.maximum(known, 1.0))
        return (blocks > 0) * (launches * share) * beyond * predicted

    def save(self, path: Path) -> None:
        save_arrays(path, "predictor", **self._arrays)

    def to_bytes(self) -> bytes:
        """What ``save`` writes."""
        return packed_arrays("predictor", **self._arrays)

    @property
    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"weights_{n}": weights for n, weights in enumerate(self.network.weights)}
        arrays |= {f"biases_{n}": biases for n, biases in enumerate(self.network.biases)}
        scales = {"centre": self.centre, "spread": self.spread, "bounds": self.bounds}
        return arrays | scales | {"kv_heads": np.array(self.kv_heads)}

    @classmethod
    def load(cls, path: Path) -> "Predictor":
        """Raises InputError when the file holds no predictor."""
        layers = range(len(HIDDEN) + 1)
        names = [f"weights_{n}" for n in layers] + [f"biases_{n}" for n in layers]
        return load_arrays(path, "predictor", ["centre", "spread", "kv_heads", "bounds", *names], cls._restored)

    @classmethod
    def _restored(
        cls, centre: np.ndarray, spread: np.ndarray, kv_heads: np.ndarray, bounds: np.ndarray, *parts: np.ndarray
    ) -> "Predictor":
        widths = (3, *HIDDEN, 1)
        weights, biases = parts[: len(widths) - 1], parts[len(widths) - 1 :]
        shapes = [part.shape for part in (*weights, *biases)]
        if shapes != [*itertools.pairwise(widths), *((width,) for width in widths[1:])]:
            raise ValueError(f"weights of shapes {shapes}")
        if centre.shape != (4,) or spread.shape != (4,) or not (spread > 0).all():
            raise ValueError("needs four centres and four spreads above 0")
        if not all(np.isfinite(part).all() for part in (centre, *parts)):
            raise ValueError("a weight is not a finite number")
        if bounds.shape != (2, 3) or not (bounds[0] <= bounds[1]).all():
            raise ValueError("needs a lower and an upper bound of each feature")
        return cls(Mlp(weights, biases), centre, spread, int(kv_heads), bounds)
