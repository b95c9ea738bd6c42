"""Every test of the contract runs in every world."""

from collections.abc import Iterator
from functools import partial

import pytest
from toys import RunToy, decoded
from worlds import WORLDS, World


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = WORLDS[request.param]()
    yield world
    world.close()


@pytest.fixture(params=["fake", "sim", pytest.param("torch", marks=pytest.mark.torch)])
def toy(request: pytest.FixtureRequest) -> RunToy:
    """Decodes a plan in some world."""
    return partial(decoded, request.param)
