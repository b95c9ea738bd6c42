"""Slows a scenario's processor down by a factor, for decoding, for prefill or for both, or its storage."""

from typing import get_args

from kvferry.sim.costs.peaks import multiplies_in_int8, share_of
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.engine import Kernel
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import StorageSpec

# Kernels of prefill; the others are of decoding.
PREFILL: frozenset[Kernel] = frozenset({"gemm", "product", "attention", "sparse_attention", "svd"})


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
    reached = {kernel: share_of(processor, kernel) for kernel in get_args(Kernel)}
    times = {kernel: prefill if kernel in PREFILL else decoding for kernel in reached}
    in_int8 = processor.int8_gemm
    return processor.model_copy(
        update={
            "int8_gemm": in_int8 and in_int8.model_copy(update={"efficiency": min(1.0, in_int8.efficiency / prefill)}),
            "efficiency": {kernel: min(1.0, share / times[kernel]) for kernel, share in reached.items()},
            **{key: decoding * getattr(processor, key) for key in ("dispatch_s", "layer_s", "step_s")},
        }
    )


def in_fp16(scenario: Scenario) -> Scenario | None:
    """Returns the scenario with a main processor that multiplies prompts with quantised weights in 16 bits; None where
    it does so anyway."""
    device = scenario.device
    main = device.processors[device.main]
    if not multiplies_in_int8(main, scenario.model):
        return None
    processors = {**device.processors, device.main: main.model_copy(update={"int8_gemm": None})}
    return scenario.model_copy(update={"device": device.model_copy(update={"processors": processors})})


def with_slowed_storage(scenario: Scenario, factor: float) -> Scenario:
    """Returns the scenario with storage whose every part takes this factor as long, though no bus, channel or plain
    rate is ever faster than it was."""
    storage = scenario.device.storage
    assert storage is not None
    changed = scenario.device.model_copy(update={"storage": _slowed_storage(storage, factor)})
    return scenario.model_copy(update={"device": changed})


def _slowed_storage(storage: StorageSpec, factor: float) -> StorageSpec:
    peaks = max(1.0, factor)
    changes: dict[str, object] = {"latency_s": factor * storage.latency_s}
    if storage.bytes_per_s is not None:
        changes["bytes_per_s"] = storage.bytes_per_s / peaks
    for key in ("read", "write"):
        changes[key] = tuple(
            row.model_copy(update={"bytes_per_s": tuple(rate / factor for rate in row.bytes_per_s)})
            for row in getattr(storage, key)
        )
    if storage.queue is not None:
        own = storage.queue
        times = ("host_s", "command_s", "write_command_s", "partial_s", "page_read_s", "page_program_s", "buffer_s")
        parts = {key: factor * getattr(own, key) for key in times if getattr(own, key) is not None}
        parts |= {key: getattr(own, key) / peaks for key in ("channel_bytes_per_s", "bus_bytes_per_s")}
        if own.host_bytes_per_s is not None:
            parts["host_bytes_per_s"] = own.host_bytes_per_s / factor
        changes["queue"] = own.model_copy(update=parts)
    if storage.map is not None:
        changes["map"] = storage.map.model_copy(update={"miss_s": factor * storage.map.miss_s})
    return storage.model_copy(update=changes)
