"""One step of a calibration: what is done as a whole, or again."""

from collections.abc import Callable
from typing import NamedTuple

from kvferry.calibration.measurement import Measurement


class Task(NamedTuple):
    """A name that stays the same under the same settings, and what measures."""

    name: str
    measure: Callable[[], list[Measurement]]
