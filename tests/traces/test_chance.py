"""Every source of chance has a stream of its own."""

import numpy as np
import pytest

from kvferry.traces.chance import Source, generator, named_generator


def first(source: Source, seed: int, *place: int) -> bytes:
    return generator(source, seed, *place).bytes(16)


def test_no_two_sources_or_places_share_a_stream() -> None:
    places = [(), (0,), (0, 0), (1,), (1, 0), (0, 1), (2**32 - 1,)]
    streams = [first(source, seed, *place) for source in Source for seed in (0, 1, 2**33) for place in places]
    streams += [named_generator(name, seed).bytes(16) for name in ("wifi-850", "lte") for seed in (0, 1)]
    assert len(set(streams)) == len(streams)
    # As mere seeds, some of these are one stream: zeros at the end count for nothing.
    assert np.random.default_rng([8, 3]).bytes(16) == np.random.default_rng([8, 3, 0, 0]).bytes(16)


def test_a_stream_is_the_same_every_time() -> None:
    assert first(Source.ARRIVALS, 7) == first(Source.ARRIVALS, 7)


@pytest.mark.parametrize("place", [(-1,), (2**32,)])
def test_places_that_would_run_into_each_other_are_refused(place: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="numbers from 0"):
        generator(Source.ARRIVALS, 0, *place)
