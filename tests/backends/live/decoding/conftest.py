"""A small model for tests of real decoding."""

from typing import Any

import pytest
from small_decoding import small_model


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()
