"""The protocol of cost models, and the cost models by name."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvferry.machine.ops import Advance, DecodeStep, Number, Op, Prefill, PrefillHead
from kvferry.sim.cost import Cost
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

# Ops whose price is kept, and how many of them: a cloud takes many that are alike, and so do thousands of devices.
_KEPT_OPS, _KEPT = (DecodeStep, Prefill, PrefillHead), 65_536


class AttentionModel(Protocol):
    def seconds(
        self, tokens: Number, active_blocks: Number, *, kv_heads: int, context_tokens: Number, load: Number
    ) -> Any:
        """Attention of a token chunk over blocks of `kv_heads` heads, after `context_tokens` others; 0 without
        blocks. A number for numbers, an array for arrays."""
        ...


class AttentionCosts:
    """A cost model: `attention` prices block-sparse attention, the roofline everything else."""

    def __init__(self, roofline: Roofline, attention: AttentionModel) -> None:
        self.attention = attention
        self._roofline = roofline
        self._kv_heads = roofline.arithmetic.model.kv_heads

    def cost(self, op: Op) -> Cost:
        """Seconds on an idle processor, and bytes of memory traffic, of one op with plain numbers."""
        if not isinstance(op, PrefillHead | Advance):
            return self._roofline.cost(op)
        op = self._roofline.compiled(op)
        blocks, *rest = self._roofline.arithmetic(op)
        dense_s, n_bytes = self._roofline.price(rest)
        seconds = self._attention_s(op, 0.0) + dense_s + self._roofline.fixed_s(op)
        return Cost(seconds, n_bytes + blocks[2])

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of each op that the arrays in `op` describe, broadcast."""
        if not isinstance(op, PrefillHead | Advance):
            return self._roofline.durations_s(op)
        op = self._roofline.compiled(op)
        dense_s = self._roofline.price_arrays(self._roofline.arithmetic(op)[1:])
        return np.asarray(self._attention_s(op, load) + dense_s + self._roofline.fixed_s(op))

    def _attention_s(self, op: Any, load: Number) -> Any:
        if isinstance(op, PrefillHead):
            blocks, kv_heads = op.active_blocks * (1 - op.final_layer), 1
        else:
            blocks, kv_heads = op.active_blocks, self._kv_heads
        return self.attention.seconds(op.tokens, blocks, kv_heads=kv_heads, context_tokens=op.context_tokens, load=load)


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


class Remembered:
    """A cost model that prices equal ops once."""

    def __init__(self, costs: CostModel) -> None:
        self._kept_cost, self._cost, self.durations_s = lru_cache(_KEPT)(costs.cost), costs.cost, costs.durations_s

    def cost(self, op: Op) -> Cost:
        return self._kept_cost(op) if type(op) in _KEPT_OPS else self._cost(op)


def shared(build: Builder) -> Builder:
    """Builds one cost model for all machines of a profile and a model, which prices equal ops once."""
    built: dict[tuple[int, int], tuple[ProcessorSpec, ModelSpec, CostModel]] = {}

    def of(processor: ProcessorSpec, model: ModelSpec) -> CostModel:
        # Specs hold dicts and are no keys; what is kept beside a model keeps their ids theirs.
        key = id(processor), id(model)
        if key not in built:
            built[key] = processor, model, Remembered(build(processor, model))
        return built[key][2]

    return of


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
