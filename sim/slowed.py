"""Slows a scenario's processor down by a factor, for decoding, for prefill or for both."""

from typing import get_args

from kvferry.specs.device import ProcessorSpec
from kvferry.specs.engine import Kernel
from kvferry.specs.scenario import Scenario

# Kernels of prefill; the others are of decoding.
PREFILL: frozenset[Kernel] = frozenset({"gemm", "attention", "sparse_attention", "svd"})


def slowed(
    scenario: Scenario, *, decoding: float = 1.0, prefill: float = 1.0, processor: str | None = None
) -> Scenario:
    """Returns the scenario with a processor (None: the main one) whose kernels take these factors as long, though they
    never reach more than its peaks, and whose fixed costs of decoding are larger by theirs. Planners know the slowed
    processor."""
    device = scenario.device
    processor = processor or device.main
    slow = _slowed(device.processors[processor], decoding, prefill)
    changed = device.model_copy(update={"processors": {**device.processors, processor: slow}})
    return scenario.model_copy(update={"device": changed})


def _slowed(processor: ProcessorSpec, decoding: float, prefill: float) -> ProcessorSpec:
    reached = {kernel: processor.efficiency.get(kernel, processor.default_efficiency) for kernel in get_args(Kernel)}
    times = {kernel: prefill if kernel in PREFILL else decoding for kernel in reached}
    return processor.model_copy(
        update={
            "efficiency": {kernel: min(1.0, share / times[kernel]) for kernel, share in reached.items()},
            **{key: decoding * getattr(processor, key) for key in ("dispatch_s", "layer_s", "step_s", "unpack_flop")},
        }
    )
