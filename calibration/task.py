"""One step of a calibration. A step that was interrupted is done again as a whole."""

from collections.abc import Callable
from typing import NamedTuple

from kvferry.calibration.measurement import Measurement


class Task(NamedTuple):
    """A name, the same under the same settings, and the function that measures."""

    name: str
    measure: Callable[[], list[Measurement]]
