"""The base of every record that a YAML file can describe."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen record. Unknown keys and NaN are errors.

    Fields that hold a physical quantity are typed with the aliases of ``specs.units``: from a file they need
    a unit ("4 ms"), from Python they take SI numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Part(Spec):
    """A part of a scenario. Its keys in YAML are the field names without the unit, as the value carries one:
    ``rtt: 4 ms`` is read into ``rtt_s``. From Python the field names do."""

    model_config = ConfigDict(
        alias_generator=lambda field: re.sub(r"_(bytes_per_s|bytes|hz|s)$", "", field), populate_by_name=True
    )


def exactly_one_of(one: str, other: str) -> ConfigDict:
    """A record's configuration whose JSON schema says that one of two keys is needed, and the other one is not to stand
    beside it. The record checks it itself, with a better message."""

    def given(*keys: str) -> dict[str, Any]:
        return {"required": list(keys), "properties": {key: {"not": {"type": "null"}} for key in keys}}

    return ConfigDict(json_schema_extra={"anyOf": [given(one), given(other)], "not": given(one, other)})


class BadKey(ValueError):
    """Raised by a validator of a whole Spec when one of its keys is at fault."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(key, what)
        self.key = key

    def __str__(self) -> str:
        return str(self.args[1])
