"""A small perceptron with ReLU layers, trained by stochastic gradient descent on the squared error. numpy only."""

from dataclasses import dataclass

import numpy as np

# Rows per prediction: their intermediate values fit in the cache, and are too few for BLAS to start more threads.
BATCH_ROWS = 512


@dataclass(frozen=True, eq=False)
class Mlp:
    """Weights [inputs, outputs] and biases [outputs] of each layer; all layers but the last end in a ReLU."""

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]

    @classmethod
    def drawn(cls, widths: tuple[int, ...], rng: np.random.Generator) -> "Mlp":
        """Uniform weights and biases within 1 / sqrt(inputs)."""
        bounds = [1 / np.sqrt(inputs) for inputs in widths[:-1]]
        weights = tuple(rng.uniform(-b, b, (i, o)) for b, i, o in zip(bounds, widths[:-1], widths[1:], strict=True))
        biases = tuple(rng.uniform(-b, b, o) for b, o in zip(bounds, widths[1:], strict=True))
        return cls(weights, biases)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """[n, inputs] -> [n], for a network with one output."""
        rows = range(0, max(len(inputs), 1), BATCH_ROWS)
        return np.concatenate([self._activations(inputs[row : row + BATCH_ROWS])[-1][:, 0] for row in rows])

    def gradients(self, inputs: np.ndarray, targets: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Gradients of the mean squared error over a batch, with respect to each weight matrix and to each bias."""
        activations = self._activations(inputs)
        slope = 2 / len(targets) * (activations[-1] - targets[:, None])
        weight_slopes, bias_slopes = [], []
        for layer in range(len(self.weights) - 1, -1, -1):
            weight_slopes.append(activations[layer].T @ slope)
            bias_slopes.append(slope.sum(axis=0))
            if layer:
                slope = (slope @ self.weights[layer].T) * (activations[layer] > 0)
        return weight_slopes[::-1], bias_slopes[::-1]

    def _activations(self, inputs: np.ndarray) -> list[np.ndarray]:
        """The input of each layer, and the output last."""
        activations = [inputs]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = activations[-1] @ weight + bias
            last = layer == len(self.weights) - 1
            activations.append(values if last else np.maximum(values, 0, out=values))
        return activations


class Descent:
    """Stochastic gradient descent with momentum, step by step, on a network's own arrays."""

    def __init__(self, network: Mlp, momentum: float) -> None:
        self._network = network
        self._momentum = momentum
        self._parameters = [*network.weights, *network.biases]
        self._velocities = [np.zeros_like(parameter) for parameter in self._parameters]

    def step(self, inputs: np.ndarray, targets: np.ndarray, rate: float) -> None:
        weight_slopes, bias_slopes = self._network.gradients(inputs, targets)
        for parameter, velocity, slope in zip(
            self._parameters, self._velocities, weight_slopes + bias_slopes, strict=True
        ):
            velocity *= self._momentum
            velocity += slope
            parameter -= rate * velocity
