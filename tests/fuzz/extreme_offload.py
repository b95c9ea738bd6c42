"""Weights that do not fit, from the ends of what is valid."""

from random import Random
from typing import Any

from ends import between, count

# Systems that keep all KV in memory, most of which take it; others refuse it at once.
_TAKE_IT = ("vllm", "full-eager", "full-flash", "full-flashinfer")
_PLACES = ("cpu", "host", "storage")


def offload(chance: Random) -> Any:
    found: dict[str, Any] = {
        "to": chance.choice(_PLACES),
        "what": chance.choice(["layers", "layers", "experts"]),
        "layers": chance.choice(["auto", count(chance, 1, 48) - 1]),
    }
    return found["to"] if chance.random() < 0.2 else found


def offloaded(chance: Random, drawn: dict[str, Any]) -> dict[str, Any]:
    """Returns the scenario with weights elsewhere, and a memory that may hold little or all."""
    found = drawn | {"budget": {**(drawn.get("budget") or {}), "offload": offload(chance)}}
    if drawn["workload"]["kind"] == "decode":
        if chance.random() < 0.8:
            found["system"] = chance.choice(_TAKE_IT)
            # Which belong to the system that was drawn.
            found.pop("policies", None)
        if chance.random() < 0.4:
            found["model"] = chance.choice(["qwen3-30b-a3b", "deepseek-v2-lite", "llama-3.1-8b", "tiny"])
    memory = found["device"]["memory"]
    if chance.random() < 0.6:
        memory |= {"capacity_bytes": f"{between(chance, 1e6, 1e12)!r} B", "reserved_bytes": "0 B"}
    processors = found["device"]["processors"]
    if chance.random() < 0.3 and "cpu" in processors:
        processors["cpu"] |= {
            "flop_per_s": f"{between(chance, 1e6, 1e18)!r} flop/s",
            "bytes_per_s": f"{between(chance, 1e3, 1e14)!r} B/s",
        }
    return found
