"""What a decode step is bound by: reading, arithmetic, or costs that are fixed."""

from typing import Literal

from kvferry.machine.ops import DecodeStep
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec

Bound = Literal["reading", "arithmetic", "fixed costs"]

# Arithmetic that takes this much longer than reading is what a step waits for.
_LONGER = 1.1


def bound_by(processor: ProcessorSpec, model: ModelSpec, step: DecodeStep) -> Bound:
    """Returns what takes most of the step's time by the roofline: launches and the host's part ("fixed costs"), weights
    and KV on their way from memory ("reading"), or sums and the unpacking of weights ("arithmetic")."""
    roofline = Roofline(processor, model)
    works = roofline.arithmetic(step)
    work_s, _ = roofline.price(works)
    if float(roofline.fixed_s(step)) + processor.dispatch_s > work_s:
        return "fixed costs"
    at_once = processor.model_copy(update={"flop_per_s": 1e30, "unpack": None})
    reading_s, _ = Roofline(at_once, model).price(works)
    return "arithmetic" if work_s > _LONGER * reading_s else "reading"
