"""Scenarios drawn from the ends of what is valid, as plain mappings."""

import math
from random import Random
from typing import Any

from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_model, load_storage

# Units of one request: more are valid, and take a minute.
MOST_UNITS = 3000


def scenario(chance: Random, systems: dict[str, list[str]], traces: list[str]) -> dict[str, Any]:
    """A scenario, valid or nearly so. `systems`: names by kind of workload; `traces`: links that can be named."""
    kind = chance.choice(sorted(systems))
    decodes = "decode" in kind
    model = _model(chance)
    found: dict[str, Any] = {
        "name": "fuzz",
        "system": chance.choice(systems[kind]),
        "device": _device(chance, needs_storage=decodes),
        "model": model,
        "link": _link(chance, traces),
        "workload": (_decode if decodes else _reuse)(chance, kind, model),
        "coupling": chance.choice(["per_head", "all_heads"]),
        "measure": chance.choice(["decode", "end_to_end"]),
        "seed": chance.choice([0, 1, 2**63 - 1]),
    }
    if chance.random() < 0.3:
        found["load"] = {"share": chance.choice([0.0, 0.3, 0.999999, 1 - 2**-53])}
    if chance.random() < 0.3:
        found["budget"] = _budget(chance)
    if chance.random() < 0.3:
        found["costs"] = {"truth": chance.choice(["roofline", "block-sparse", "table"]), "estimate": "roofline"}
    if chance.random() < 0.3 and decodes:
        found["policies"] = _decode_policies(chance)
    if chance.random() < 0.3 and not decodes:
        found["policies"] = _reuse_policies(chance, found["system"])
    return found


def between(chance: Random, low: float, high: float) -> float:
    """One of the two ends, or a number between them by its logarithm."""
    if chance.random() < 0.3:
        return chance.choice([low, high])
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def count(chance: Random, low: int, high: int) -> int:
    return min(high, max(low, round(between(chance, low, high))))


def _seconds(chance: Random, most: float) -> str:
    return f"{chance.choice([0.0, between(chance, 1e-9, most)])!r} s"


def _link(chance: Random, traces: list[str]) -> dict[str, Any]:
    link: dict[str, Any] = {"rtt": _seconds(chance, 10)}
    if chance.random() < 0.5:
        link["rate"] = f"{between(chance, 1e-3, 1e14)!r} B/s"
    else:
        link |= {
            "trace": chance.choice(traces),
            "scale": between(chance, 1e-3, 1e6),
            "offset": _seconds(chance, 1e7),
            "on_end": chance.choice(["loop", "hold", "end"]),
        }
    if chance.random() < 0.3:
        start = between(chance, 1e-6, 1e3)
        link["outages"] = [{"start": f"{start!r} s", "duration": f"{between(chance, 1e-6, 1e7)!r} s"}]
    return link


def _reuse(chance: Random, kind: str, model: dict[str, Any]) -> dict[str, Any]:
    per_chunk = model["layers"] * model["kv_heads"]
    chunks = count(chance, 1, max(1, MOST_UNITS // per_chunk))
    chunk_tokens = count(chance, 1, 10**6)
    context = min(10**7, chance.randint((chunks - 1) * chunk_tokens + 1, chunks * chunk_tokens))
    workload: dict[str, Any] = {
        "kind": kind,
        "content": chance.choice(["text", "vlm"]),
        "context": context,
        "chunk_tokens": chunk_tokens,
        "question": count(chance, 1, 10**6),
        "output": count(chance, 1, 2000),
        "requests": count(chance, 1, 4),
    }
    if chance.random() < 0.3:
        workload |= {
            "spread": chance.choice([0.0, 1e-9, 1.0]),
            "contexts": count(chance, 1, 100_000),
            "zipf": chance.choice([0.0, 1.0, 10.0]),
            "turns": count(chance, 1, 20),
            "think": _seconds(chance, 1e7),
        }
    if chance.random() < 0.5:
        workload["arrivals"] = chance.choice(
            [{"rate": f"{between(chance, 1e-6, 1e9)!r} Hz"}, {"every": f"{between(chance, 1e-9, 1e7)!r} s"}]
        )
    return workload


def _decode(chance: Random, kind: str, model: dict[str, Any]) -> dict[str, Any]:
    batch = count(chance, 1, 64)
    return {
        "kind": kind,
        "context": count(chance, 1, 200_000),
        "batch": batch,
        "output": count(chance, 1, 10**5),
        # Each reads for itself in every layer and step.
        "decoded": count(chance, 2, max(2, 400 // model["layers"] // batch)),
        "reach": chance.choice([1, 32, 1_000_000]),
        "persistence": chance.choice([1e-3, 9.0, 1e6]),
        "lasting": chance.choice([0.0, 0.35, 1.0]),
    }


def _decode_policies(chance: Random) -> dict[str, Any]:
    found = {
        "group_tokens": count(chance, 1, 1000),
        "selected_tokens": count(chance, 1, 10**5),
        "slots": chance.choice([0, 1, 400, 10**6]),
        "compression": between(chance, 1e-3, 1e6),
        "metadata_share": between(chance, 1e-6, 1.0),
        "per_head": chance.random() < 0.5,
        "reuse": chance.random() < 0.5,
        "ahead": chance.random() < 0.5,
        "selector": chance.choice(["all", "low-rank-keys", "landmarks", "page-bounds", "retrieval-head"]),
        "placement": chance.choice(["storage", "host", "device", "all-or-nothing", "progressive"]),
        "rolling": chance.random() < 0.5,
    }
    return {key: found[key] for key in chance.sample(sorted(found), chance.randint(1, 3))}


def _reuse_policies(chance: Random, system: str) -> dict[str, Any]:
    found: dict[str, Any] = {"serving": chance.choice(["fair", "one-at-a-time"])}
    if system == "sparkv":
        found["adapt"] = chance.random() < 0.5
        found["migration_limit"] = chance.choice([0.0, 1.0])
        found["schedule"] = chance.choice(["greedy", "greedy-literal", "greedy-top-down", "greedy-last-first", "chain"])
    elif system == "cachegen":
        found["objective"] = chance.choice(["quality", "1 ns", "1 s", "1e9 s"])
    elif system == "ferry":
        found["needed_first"] = chance.random() < 0.5
    return {key: found[key] for key in chance.sample(sorted(found), chance.randint(1, len(found)))}


def _budget(chance: Random) -> dict[str, Any]:
    found = {
        "kv_share": between(chance, 1e-6, 1.0),
        "kv": f"{between(chance, 1.0, 1e12)!r} B",
        "in_memory_kv": f"{between(chance, 1.0, 1e12)!r} B",
    }
    return {key: found[key] for key in chance.sample(sorted(found), chance.randint(1, 3))}


def _model(chance: Random) -> dict[str, Any]:
    if chance.random() < 0.3:
        return load_model(chance.choice(["tiny", "qwen3-0.6b"])).model_dump(mode="json")
    kv_heads = count(chance, 1, 64)
    return {
        "name": "drawn",
        "layers": count(chance, 1, 48),
        "hidden": count(chance, 1, 10**6),
        "query_heads": kv_heads * count(chance, 1, 100),
        "kv_heads": kv_heads,
        "head_dim": count(chance, 1, 10**5),
        "ffn": count(chance, 1, 10**7),
        "vocabulary": count(chance, 1, 10**8),
        "weight_bits": between(chance, 1e-3, 64),
        "kv_value_bytes": between(chance, 1e-3, 8),
        "source": "drawn",
    }


def _device(chance: Random, needs_storage: bool) -> dict[str, Any]:
    device = load_device(chance.choice(names("device"))).model_dump(mode="json", exclude_none=True)
    if chance.random() < 0.7:
        device["memory"]["capacity_bytes"], device["memory"]["reserved_bytes"] = "9 PB", "0 B"
    if chance.random() < 0.5:
        processor = device["processors"][device["main"]]
        processor["flop_per_s"] = f"{between(chance, 1e6, 1e18)!r} flop/s"
        processor["bytes_per_s"] = f"{between(chance, 1e3, 1e14)!r} B/s"
        processor["dispatch_s"] = _seconds(chance, 1.0)
        processor["default_efficiency"] = between(chance, 1e-6, 1.0)
    if chance.random() < 0.3:
        device["decompressor"] = {
            "values_per_s": f"{between(chance, 1e3, 1e13)!r} value/s",
            "workers": count(chance, 1, 1024),
            "piece_s": _seconds(chance, 1.0),
        }
    if needs_storage and ("storage" not in device or chance.random() < 0.5):
        device["storage"] = _storage(chance)
    return device


def _storage(chance: Random) -> dict[str, Any]:
    if chance.random() < 0.5:
        found = load_storage(chance.choice(names("storage"))).model_dump(mode="json", exclude_none=True)
        return found | {"model": chance.choice(["curve", "queue"]), "queue_depth": count(chance, 1, 1024)}
    found = {
        "bytes_per_s": f"{between(chance, 1e3, 1e14)!r} B/s",
        "latency_s": _seconds(chance, 1.0),
        "block_bytes": f"{2 ** chance.randint(0, 20)} B",
        "good_read_bytes": f"{between(chance, 1.0, 1e12)!r} B",
        "queue_depth": count(chance, 1, 1024),
    }
    if chance.random() < 0.3:
        found["capacity_bytes"] = f"{between(chance, 1.0, 1e16)!r} B"
    return found
