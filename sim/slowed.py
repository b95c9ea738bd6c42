"""A scenario whose main processor takes so many times as long to decode, or for prefill, as its profile says."""

from typing import get_args

from kvferry.specs.device import ProcessorSpec
from kvferry.specs.engine import Kernel
from kvferry.specs.scenario import Scenario

# Kernels of prefill; the others are of decoding.
PREFILL: frozenset[Kernel] = frozenset({"gemm", "attention", "sparse_attention", "svd"})


def slowed(scenario: Scenario, *, decoding: float = 1.0, prefill: float = 1.0) -> Scenario:
    """The same scenario with that processor: kernels reach so much less of its peaks, never more than all, and fixed
    costs of decoding are so much larger. Planners know it: whoever runs this on a device knows the device."""
    device = scenario.device
    main = _slowed(device.processors[device.main], decoding, prefill)
    changed = device.model_copy(update={"processors": {**device.processors, device.main: main}})
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
