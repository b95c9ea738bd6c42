"""What of a modelled machine's future follows by arithmetic, where nothing that it does depends on when."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvferry.machine.answers import Answer
from kvferry.machine.ops import Op
from kvferry.sim.processor import Processor
from kvferry.sim.storage_curve import CurveStorage


@dataclass(frozen=True)
class Foresight:
    """``answer(op)``: what an op will be answered, asked in the order of a run. ``chosen(step)``: int32[layers, batch,
    heads, k], the answers of a step's Select ops; None: they depend on what becomes of the steps before. ``beside``:
    the processor's speed (up to 1) while the storage works, ``reads_beside``: the storage's while the processor works;
    nothing else slows either of them."""

    answer: Callable[[Op], Answer | None]
    chosen: Callable[[int], np.ndarray] | None
    processor: Processor
    storage: CurveStorage
    beside: float
    reads_beside: float = 1.0
