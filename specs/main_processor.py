"""The processor of a device that a scenario asks for, with the memory that it computes out of."""

from collections.abc import Mapping
from typing import Any

from kvferry.specs.base import BadKey


def with_main(device: Mapping[str, Any], processor: str) -> dict[str, Any]:
    """A device, as a file has it, that runs on this processor. The CPU beside a card computes out of the host's memory.
    Applied twice, it changes nothing more. Raises BadKey where that memory's size is not said."""
    chosen, memory = device["processors"][processor], device.get("memory")
    kind = chosen.get("kind") if isinstance(chosen, Mapping) else None
    if (
        device.get("main") == processor
        or kind != "cpu"
        or not isinstance(memory, Mapping)
        or memory.get("unified") is not False
    ):
        return {**device, "main": processor}
    if memory.get("host_capacity_bytes") is None:
        what = "is missing, in which the CPU has weights and KV; write it like host_capacity_bytes: 32 GB"
        raise BadKey("device.memory.host_capacity_bytes", what)
    host = {"unified": True, "capacity_bytes": memory["host_capacity_bytes"], "bytes_per_s": chosen.get("bytes_per_s")}
    kept = {"margin_share": memory["margin_share"]} if "margin_share" in memory else {}
    return {**device, "main": processor, "memory": {**host, **kept}}
