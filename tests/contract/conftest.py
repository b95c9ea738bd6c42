"""Every test of the contract runs in every world."""

from collections.abc import Iterator

import pytest
from worlds import WORLDS, World


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = WORLDS[request.param]()
    yield world
    world.close()
