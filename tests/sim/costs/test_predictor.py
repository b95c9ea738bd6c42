"""SparKV's predictor: slopes against differences, steps against torch, error against the noise, files."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.block_sparse import BlockSparseKernel
from kvferry.sim.costs.mlp import Descent, Mlp
from kvferry.sim.costs.predictor import HIDDEN, Predictor
from kvferry.sim.costs.samples import Samples, measure
from kvferry.specs.errors import InputError


def batch(rows: int = 16) -> tuple[Mlp, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return Mlp.drawn((3, *HIDDEN, 1), rng), rng.standard_normal((rows, 3)), rng.standard_normal(rows)


@pytest.fixture(scope="module")
def samples() -> Samples:
    device, model = load_device("jetson-agx-orin-sparkv"), load_model("llama-3.1-8b")
    return measure(BlockSparseKernel(device.processors["gpu"], model), model, seed=5)


@pytest.fixture(scope="module")
def halves(samples: Samples) -> tuple[Samples, Samples]:
    return samples.split(0.8, np.random.default_rng(0))


@pytest.fixture(scope="module")
def predictor(halves: tuple[Samples, Samples]) -> Predictor:
    return Predictor.trained(halves[0], seed=0)


def test_forward_by_hand() -> None:
    # Hidden: max(0, 1 x 2 + 3 x -1 + 0.5) = 0 and max(0, 1 x 1 + 3 x 1 - 1) = 3; out: 0 x 7 + 3 x 2 + 0.25.
    network = Mlp(
        (np.array([[2.0, 1.0], [-1.0, 1.0]]), np.array([[7.0], [2.0]])), (np.array([0.5, -1.0]), np.array([0.25]))
    )
    assert network(np.array([[1.0, 3.0]])).tolist() == [6.25]


def test_slopes_are_those_of_the_mean_squared_error() -> None:
    network, inputs, targets = batch()

    def loss() -> float:
        return float(((network(inputs) - targets) ** 2).mean())

    weight_slopes, bias_slopes = network.gradients(inputs, targets)
    rng = np.random.default_rng(0)
    for parameter, slope in zip([*network.weights, *network.biases], weight_slopes + bias_slopes, strict=True):
        assert parameter.shape == slope.shape
        for _ in range(5):
            place = tuple(rng.integers(size) for size in parameter.shape)
            kept = parameter[place]
            parameter[place] = kept + 1e-6
            above = loss()
            parameter[place] = kept - 1e-6
            difference = (above - loss()) / 2e-6
            parameter[place] = kept
            assert slope[place] == pytest.approx(difference, abs=1e-7)


@pytest.mark.torch
def test_forward_and_steps_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    network, inputs, targets = batch()
    layers: list[object] = []
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        linear = torch.nn.Linear(*weight.shape, dtype=torch.float64)
        linear.weight.data = torch.tensor(weight.T.copy())
        linear.bias.data = torch.tensor(bias.copy())
        layers += [linear] if number == len(network.weights) - 1 else [linear, torch.nn.ReLU()]
    twin = torch.nn.Sequential(*layers)
    np.testing.assert_allclose(twin(torch.tensor(inputs))[:, 0].detach().numpy(), network(inputs), rtol=1e-12)

    ours, theirs = Descent(network, momentum=0.9), torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        theirs.zero_grad()
        torch.nn.functional.mse_loss(twin(torch.tensor(inputs))[:, 0], torch.tensor(targets)).backward()
        theirs.step()
        ours.step(inputs, targets, rate=0.05)
    np.testing.assert_allclose(twin(torch.tensor(inputs))[:, 0].detach().numpy(), network(inputs), rtol=1e-10)


def test_momentum_is_an_average_of_slopes() -> None:
    # loss = (w x - y)^2 with x = 1, y = 0, w = 1: slope 2; step 0.1 x 2 -> 0.8. Slope 1.6, velocity 0.5 x 2 + 1.6
    # = 2.6 -> 0.54. The bias starts at 0 and takes part: slopes 2 and 2 (w + b) as well.
    network = Mlp((np.array([[1.0]]),), (np.array([0.0]),))
    descent, inputs, targets = Descent(network, momentum=0.5), np.array([[1.0]]), np.array([0.0])
    descent.step(inputs, targets, rate=0.1)
    assert (network.weights[0][0, 0], network.biases[0][0]) == pytest.approx((0.8, -0.2))
    # w + b = 0.6: slope 1.2, velocity 1 + 1.2 = 2.2.
    descent.step(inputs, targets, rate=0.1)
    assert (network.weights[0][0, 0], network.biases[0][0]) == pytest.approx((0.58, -0.42))


def test_it_learns_down_to_the_noise(predictor: Predictor, halves: tuple[Samples, Samples]) -> None:
    held_out = halves[1]
    assert held_out.seconds.size == 1200
    predicted = predictor.predict_s(held_out.token_chunk, held_out.active_blocks, held_out.load)
    error = np.abs(predicted / held_out.seconds - 1).mean()
    # A log-normal factor of sigma 0.04 alone leaves 0.04 x sqrt(2 / pi) = 3.2 %.
    assert 0.03 < error < 0.045


def test_training_is_the_same_every_time(predictor: Predictor, halves: tuple[Samples, Samples]) -> None:
    again = Predictor.trained(halves[0], seed=0)
    other = Predictor.trained(halves[0], seed=1)
    for mine, same in zip(predictor.network.weights, again.network.weights, strict=True):
        np.testing.assert_array_equal(mine, same)
    assert not np.array_equal(predictor.network.weights[0], other.network.weights[0])


def test_a_constant_feature_does_no_harm(halves: tuple[Samples, Samples]) -> None:
    training = halves[0]
    idle = Samples(training.token_chunk, training.active_blocks, np.zeros(training.load.size), training.seconds)
    assert np.isfinite(Predictor.trained(idle, seed=0, epochs=1).predict_s(3, 100, 0.0))


def test_a_batch_is_predicted_as_its_chunks(predictor: Predictor) -> None:
    chunks, blocks = np.arange(1, 5)[:, None], np.array([50, 300, 900])
    together = predictor.predict_s(chunks, blocks, 0.2)
    assert together.shape == (4, 3)
    for (t, s), seconds in np.ndenumerate(together):
        assert predictor.predict_s(t + 1, blocks[s], 0.2) == pytest.approx(float(seconds))


def test_partial_chunks_count_in_proportion_and_nothing_is_free(predictor: Predictor) -> None:
    whole = predictor.seconds(1024, 400, context_tokens=4096)
    assert predictor.seconds(512, 200, context_tokens=4096) == pytest.approx(float(whole) / 2)
    assert predictor.seconds(1024, 3200, kv_heads=8, context_tokens=4096) == pytest.approx(8 * float(whole))
    assert predictor.seconds(1024, 0, context_tokens=4096) == 0


def test_files_bring_back_the_same_predictions(predictor: Predictor, tmp_path: Path) -> None:
    predictor.save(tmp_path / "mlp.npz")
    back = Predictor.load(tmp_path / "mlp.npz")
    blocks = np.arange(40, 2000, 7)
    np.testing.assert_array_equal(back.predict_s(9, blocks, 0.3), predictor.predict_s(9, blocks, 0.3))


def test_a_network_of_another_shape_is_refused(predictor: Predictor, tmp_path: Path) -> None:
    narrow = Predictor(Mlp.drawn((3, 8, 4, 1), np.random.default_rng(0)), predictor.centre, predictor.spread)
    narrow.save(tmp_path / "narrow.npz")
    with pytest.raises(InputError, match=r"narrow\.npz"):
        Predictor.load(tmp_path / "narrow.npz")
