"""No test of a channel waits for ever."""

from collections.abc import Iterator

import pytest
from deadline import deadline


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with deadline(60):
        yield
