"""The base of every record that a YAML file can describe."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """An inert, frozen record: unknown keys and NaN are errors, nothing is written to it later.

    Fields that hold a physical quantity are typed with the aliases of ``specs.units``: from a file they need
    a unit ("4 ms"), from Python they take SI numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
