"""Every test of the contract runs in every world."""

from collections.abc import Iterator

import pytest
from worlds import PARTIES, WORLDS, Party, World


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = WORLDS[request.param]()
    yield world
    world.close()


@pytest.fixture(params=sorted(PARTIES))
def party(request: pytest.FixtureRequest) -> Iterator[Party]:
    party = PARTIES[request.param]()
    yield party
    party.close()
