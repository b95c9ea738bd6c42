"""pydantic's findings in the project's words."""

from typing import Annotated, Any

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from kvferry.specs.findings import rule_of


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Annotated[int, Field(ge=1)], 0, "must be at least 1"),
        (Annotated[float, Field(gt=0)], 0.0, "must be above 0"),
        (Annotated[int, Field(le=65_535)], 99_999, "must be at most 65,535"),
        (Annotated[float, Field(lt=0.5)], 0.5, "must be below 0.5"),
        (Annotated[list[int], Field(min_length=1)], [], "entries needed: at least 1"),
        (int, "x", "must be a whole number"),
        (complex, "x", "Input should be a valid python complex object"),
    ],
)
def test_what_a_value_must_be(kind: Any, value: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert rule_of(caught.value.errors()[0]).startswith(said)
