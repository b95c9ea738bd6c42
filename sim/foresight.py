"""What of a modelled machine's future follows by arithmetic, where nothing that it does depends on when."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvferry.sim.processor import Processor
from kvferry.sim.storage_curve import CurveStorage


@dataclass(frozen=True)
class Foresight:
    """``chosen(step)``: int32[layers, batch, heads, k], what the Select ops of a step will be answered. ``beside``: the
    processor's speed (up to 1) while the storage works; nothing else slows either of them."""

    chosen: Callable[[int], np.ndarray]
    processor: Processor
    storage: CurveStorage
    beside: float
