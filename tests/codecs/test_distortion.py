"""What encodings cost in quality: the measured table, and mixtures."""

import numpy as np
import pytest

from kvferry.codecs import codec
from kvferry.codecs.sizes import CODECS, measured, of_mixture


def test_every_real_codec_was_measured_at_every_level() -> None:
    assert set(measured()) == set(codec.CODECS) == set(CODECS)
    for name, levels in measured().items():
        assert len(levels) == codec.CODECS[name].levels
        # A coarser level is worse in both.
        assert list(levels) == sorted(levels)


def test_squared_errors_of_a_mixture_add_up() -> None:
    best, worst = measured()["cachegen"][0], measured()["cachegen"][-1]
    mixed = of_mixture("cachegen", {0: 0.25, 4: 0.5})
    assert mixed is not None
    assert mixed.relative_error == pytest.approx(np.sqrt(0.25 * best.relative_error**2 + 0.5 * worst.relative_error**2))
    assert mixed.kl_nats == pytest.approx(0.25 * best.kl_nats + 0.5 * worst.kl_nats)
    assert of_mixture("huffman", {}) == (0.0, 0.0)
    assert of_mixture("unheard-of", {0: 1.0}) is None
