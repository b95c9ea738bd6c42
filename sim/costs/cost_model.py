"""The protocol of cost models, and the cost models by name."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvferry.machine.ops import Number, Op
from kvferry.sim.cost import Cost
from kvferry.sim.costs.attention import AttentionCosts
from kvferry.sim.costs.block_sparse import BlockSparseKernel
from kvferry.sim.costs.fitted import PREDICTOR, FittedCosts
from kvferry.sim.costs.predictor import Predictor
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.samples import measure
from kvferry.sim.costs.table import MeasuredTable
from kvferry.specs.device import DeviceSpec, ProcessorSpec
from kvferry.specs.errors import InputError, pick
from kvferry.specs.model import ModelSpec
from kvferry.traces.chance import Source, generator


class CostModel(Protocol):
    """Prices ops on an idle processor; the queue adds ``dispatch_s`` and what background load costs."""

    def cost(self, op: Op) -> Cost:
        """Duration and memory traffic of one op with plain numbers."""
        ...

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of every op that the arrays in `op` describe, broadcast together; ``cost`` gives the same.

        `load` (utilisation by others, 0 to below 1) matters to models of block-sparse attention; others ignore it.
        """
        ...


class Builder(Protocol):
    def __call__(self, processor: ProcessorSpec, model: ModelSpec) -> CostModel: ...


def block_sparse(processor: ProcessorSpec, model: ModelSpec) -> CostModel:
    """Block-sparse attention by the modelled kernel. Raises InputError when the profile does not describe it."""
    return AttentionCosts(Roofline(processor, model), BlockSparseKernel(processor, model))


def predictor(processor: ProcessorSpec, model: ModelSpec) -> CostModel:
    """Block-sparse attention by SparKV's predictor: as fitted when the profile was measured, else trained on the
    modelled kernel. Raises InputError when the profile has neither."""
    folder = None if processor.measured is None else Path(processor.measured) / model.name
    if folder is not None and (folder / PREDICTOR).is_file():
        return FittedCosts.read(folder, Roofline(processor, model))
    if processor.block_sparse is None:
        fitted = "no `measured` folder" if folder is None else f"no {folder.name}/{PREDICTOR} in its `measured` folder"
        raise InputError(
            f"its profile has {fitted}, which `kvferry calibrate` fits to measured attention, and no block_sparse part "
            "to train a predictor on"
        )
    return AttentionCosts(Roofline(processor, model), _Predictors(processor, model))


def table(processor: ProcessorSpec, model: ModelSpec) -> CostModel:
    """The measured costs in the profile's folder. Raises InputError if there is no folder, or no such model in it."""
    if processor.measured is None:
        raise InputError("its profile has no `measured` folder")
    return MeasuredTable.read(Path(processor.measured) / model.name, Roofline(processor, model))


COST_MODELS: dict[str, Builder] = {
    "roofline": Roofline,
    "block-sparse": block_sparse,
    "predictor": predictor,
    "table": table,
}


def main_costs(name: str, device: DeviceSpec, model: ModelSpec) -> CostModel:
    """The named cost model of a device's main processor. Raises InputError, naming that processor."""
    builder = pick("cost model", COST_MODELS, name)
    try:
        return builder(device.processors[device.main], model)
    except InputError as error:
        raise InputError(f"{name} cannot price processor {device.main} of {device.name}: {error}") from None


class _Predictors:
    """One predictor for single heads, one for whole layers; each trained (half a second) when first needed."""

    def __init__(self, processor: ProcessorSpec, model: ModelSpec) -> None:
        self._described = processor.model_dump_json(), model.model_dump_json()

    def seconds(self, *counts: Number, kv_heads: int, **context: Any) -> Any:
        return _trained(*self._described, kv_heads).seconds(*counts, kv_heads=kv_heads, **context)


@lru_cache(maxsize=16)
def _trained(processor_json: str, model_json: str, kv_heads: int, seed: int = 0) -> Predictor:
    # Specs hold dicts and cannot be cache keys; their text can.
    model = ModelSpec.model_validate_json(model_json)
    kernel = BlockSparseKernel(ProcessorSpec.model_validate_json(processor_json), model)
    training, _ = measure(kernel, model, seed, kv_heads=kv_heads).split(0.8, generator(Source.COST_SPLIT, seed))
    return Predictor.trained(training, seed, kv_heads=kv_heads)
