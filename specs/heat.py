"""How a device warms up, what it does when it is warm, and the battery that it runs from."""

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.units import Celsius, Joules, JoulesPerKelvin, KelvinPerWatt, Seconds


class BodySpec(Spec):
    """The body that a device's chip passes its heat to, and that passes it on to the air."""

    capacity_j_per_k: JoulesPerKelvin
    resistance_k_per_w: KelvinPerWatt


class HeatSpec(Spec):
    """A chip that stores heat and passes it on to the air, or to a body, and a governor that lowers the clock of all
    processors with the chip's temperature: see sim/heat.py for the model."""

    ambient_c: Celsius = 25.0
    # As a run begins; None: as the air.
    start_c: Celsius | None = None
    # Of the chip with what is closely joined to it; and between it and the body, or the air where there is none.
    capacity_j_per_k: JoulesPerKelvin
    resistance_k_per_w: KelvinPerWatt
    body: BodySpec | None = None
    # The clock falls evenly from 1 at the first temperature to the least, a share of the full clock, at the second.
    throttle_from_c: Celsius
    throttle_to_c: Celsius
    least_clock: Annotated[float, Field(gt=0, lt=1)]
    # How often the governor looks at the temperature.
    look_s: Seconds = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _limits(self) -> "HeatSpec":
        low, high = self.throttle_from_c, self.throttle_to_c
        if high <= low:
            raise BadKey(
                "throttle_to_c", f"{high:g} C is not above throttle_from_c of {low:g} C; {low + 10:g} C would do"
            )
        if low <= self.ambient_c:
            what = (
                f"{low:g} C is not above ambient_c of {self.ambient_c:g} C: the device would never have its full clock"
            )
            raise BadKey("throttle_from_c", f"{what}; {self.ambient_c + 10:g} C would do")
        return self


class BatterySpec(Spec):
    """What a charged battery holds."""

    capacity_j: Joules

    @field_validator("capacity_j")
    @classmethod
    def _something(cls, capacity_j: float) -> float:
        if not capacity_j:
            raise ValueError("a battery holds more than nothing; a phone's holds some 15 Wh, a laptop's some 60 Wh")
        return capacity_j

    @model_validator(mode="before")
    @classmethod
    def _has_a_capacity(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("capacity_j") is None:
            raise BadKey("capacity_j", "is missing; a phone's battery holds some 15 Wh, a laptop's some 60 Wh")
        return value
