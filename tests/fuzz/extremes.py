"""Scenarios drawn from the ends of what is valid, as plain mappings."""

from random import Random
from typing import Any

import extreme_assist
import extreme_heat
import extreme_offload
import extreme_session
from ends import between, count, seconds

from kvferry.pipelines.checks import system_of
from kvferry.pipelines.parameters import BadParameters
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_model, load_storage
from kvferry.specs.errors import InputError

# With these requests come and go; with others they are there at the start.
_COME_AND_GO = ("vllm", "full-eager", "full-flash", "full-flashinfer")
_ROLES = {
    "selector": ("all", "low-rank-keys", "partial-keys", "landmarks", "page-bounds", "centroids", "retrieval-head"),
    "residency": ("none", "reuse", "elastic", "whole-cache", "virtual-cache"),
    "layout": ("groups", "value-groups", "sequence-order", "cluster-by-cluster", "cluster-pools", "dual-head"),
    "upkeep": ("rolling-groups", "none", "adaptive-clusters", "static-clusters", "local-clusters"),
    "placement": ("host", "device", "storage", "all-or-nothing", "progressive"),
    "batching": ("continuous", "lock-step"),
    "attention": ("eager", "flash", "in-place", "paged"),
}
# Units of one request, and steps of all layers: more are valid, and take a minute.
MOST_UNITS, MOST_STEPS = 600, 200


def scenario(chance: Random, systems: dict[str, list[str]], traces: list[str]) -> dict[str, Any]:
    """A scenario, valid or nearly so. `systems`: names by kind of workload; `traces`: links that can be named."""
    kind = chance.choice(sorted(systems))
    model, device = _model(chance), _device(chance, needs_storage=kind != "context-reuse")
    found: dict[str, Any] = {
        "name": "fuzz",
        "system": chance.choice(systems[kind]),
        "device": device,
        "model": model,
        "link": _link(chance, traces),
        "measure": chance.choice(["decode", "end_to_end"]),
        "seed": chance.choice([0, 1, 2**63 - 1]),
    }
    if kind == "assist":
        found |= {"workload": extreme_assist.workload(chance), "budget": {"prefill_chunk": count(chance, 1, 10**7)}}
        found["machines"] = extreme_assist.machines(chance, _device, _model)
        policies = extreme_assist.policies(chance)
    elif kind == "decode":
        found |= {
            "workload": _decode(chance, kind, model, found["system"]),
            "budget": _budget(chance) if chance.random() < 0.3 else None,
        }
        policies = _decode_policies(chance)
    elif kind == "session":
        found |= {
            "workload": extreme_session.workload(chance, model["layers"], model["kv_heads"]),
            "budget": extreme_session.budget(chance) if chance.random() < 0.5 else None,
        }
        policies = extreme_session.policies(chance)
    else:
        found |= {"workload": _reuse(chance, kind, model), "coupling": chance.choice(["per_head", "all_heads"])}
        policies = _reuse_policies(chance, found["system"])
    if chance.random() < 0.3 and kind != "assist":
        found["load"] = {"share": chance.choice([0.0, 0.3, 0.999999, 1 - 2**-53])}
    if chance.random() < 0.03:
        found["costs"] = chance.choice(["block-sparse", "predictor", "table"])
    if chance.random() < 0.5:
        # Most are what the system takes; what it does not is refused at once.
        found["policies"] = policies if chance.random() < 0.2 else _taken(kind, found["system"], policies)
    if kind == "session" and "assist" in found.get("policies", {}):
        found["machines"] = _machines_of_a_session(chance, model)
    return {key: value for key, value in found.items() if value is not None}


def _machines_of_a_session(chance: Random, model: dict[str, Any]) -> dict[str, Any]:
    """A cloud, which most often has the device's model."""
    found = extreme_assist.machines(chance, _device, _model)
    if chance.random() < 0.7:
        for machine in found.values():
            machine["model"] = model
    return found


def _taken(kind: str, system: str, policies: dict[str, Any]) -> dict[str, Any]:
    """The policies that the system takes, each by itself."""
    found = {}
    for role, value in policies.items():
        try:
            system_of(kind, system).with_policies({role: value})
        except (BadParameters, InputError):
            continue
        found[role] = value
    return found


def _link(chance: Random, traces: list[str]) -> dict[str, Any]:
    link: dict[str, Any] = {"rtt": seconds(chance, 10)}
    if chance.random() < 0.5:
        link["rate"] = f"{between(chance, 1e-3, 1e14)!r} B/s"
    else:
        link |= {
            "trace": chance.choice(traces),
            "scale": between(chance, 1e-3, 1e6),
            "offset": seconds(chance, 1e7),
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
            "think": seconds(chance, 1e7),
        }
    if chance.random() < 0.5:
        workload["arrivals"] = chance.choice(
            [{"rate": f"{between(chance, 1e-6, 1e9)!r} Hz"}, {"every": f"{between(chance, 1e-9, 1e7)!r} s"}]
        )
    return workload


def _decode(chance: Random, kind: str, model: dict[str, Any], system: str) -> dict[str, Any]:
    batch = count(chance, 1, 64)
    found: dict[str, Any] = {
        "kind": kind,
        "context": count(chance, 1, 200_000),
        "batch": batch,
        "output": count(chance, 1, 10**5),
        # Each reads for itself in every layer and step.
        "decoded": count(chance, 2, max(2, MOST_STEPS // model["layers"] // batch)),
        "reach": chance.choice([1, 32, 1_000_000]),
        "persistence": chance.choice([1e-3, 9.0, 1e6]),
        "lasting": chance.choice([0.0, 0.35, 1.0]),
    }
    more: dict[str, Any] = {
        "part": chance.choice(["middle", "end", "spread"]),
        "retrieval_persistence": between(chance, 1e-3, 1e6),
        "keys": {
            "width": count(chance, 1, 256),
            "novelty": chance.choice([0.0, 1.0]),
            "drift": chance.choice([0, 100]),
        },
        "batch": "max",
    }
    if system in _COME_AND_GO or chance.random() < 0.1:
        more |= {
            "spread": chance.choice([1e-9, 1.0]),
            "requests": count(chance, 1, 20),
            "arrivals": {"rate": f"{between(chance, 1e-6, 1e9)!r} Hz"},
        }
    return found | {key: more[key] for key in chance.sample(sorted(more), chance.choice([0, 0, 1, 2]))}


def _decode_policies(chance: Random) -> dict[str, Any]:
    found = {
        "group_tokens": count(chance, 1, 1000),
        "selected_tokens": count(chance, 1, 10**5),
        "slots": chance.choice([0, 1, 400, 10**6]),
        "compression": between(chance, 1e-3, 1e6),
        "prefill_tokens": count(chance, 1, 10**6),
        **{role: chance.choice(names_of) for role, names_of in _ROLES.items()},
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
        "offload": extreme_offload.offload(chance),
    }
    return {key: found[key] for key in chance.sample(sorted(found), chance.randint(1, 3))}


def _model(chance: Random) -> dict[str, Any]:
    if chance.random() < 0.3:
        return load_model(chance.choice(["tiny", "qwen3-0.6b"])).model_dump(mode="json")
    kv_heads, head_dim = count(chance, 1, 64), count(chance, 1, 10**5)
    return {
        "name": "drawn",
        "layers": count(chance, 1, 48),
        "hidden": count(chance, 1, 10**6),
        "query_heads": kv_heads * count(chance, 1, 100),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn": count(chance, 1, 10**7),
        "vocabulary": count(chance, 1, 10**8),
        "weight_bits": between(chance, 1e-3, 64),
        "kv_value_bytes": between(chance, max(1e-3, 0.5 / head_dim), 8),
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
        processor["dispatch_s"] = seconds(chance, 1.0)
        processor["default_efficiency"] = between(chance, 1e-6, 1.0)
    if chance.random() < 0.3:
        device["decompressor"] = {
            "values_per_s": f"{between(chance, 1e3, 1e13)!r} value/s",
            "workers": count(chance, 1, 1024),
            "piece_s": seconds(chance, 1.0),
        }
    if chance.random() < 0.15:
        device["heat"] = extreme_heat.heat(chance)
    if needs_storage and ("storage" not in device or chance.random() < 0.5):
        device["storage"] = _storage(chance)
    return device


def _storage(chance: Random) -> dict[str, Any]:
    if chance.random() < 0.5:
        found = load_storage(chance.choice(names("storage"))).model_dump(mode="json", exclude_none=True)
        return found | {"model": chance.choice(["curve", "queue"]), "queue_depth": count(chance, 1, 1024)}
    found = {
        "bytes_per_s": f"{between(chance, 1e3, 1e14)!r} B/s",
        "latency_s": seconds(chance, 1.0),
        "block_bytes": f"{2 ** chance.randint(0, 20)} B",
        "good_read_bytes": f"{between(chance, 1.0, 1e12)!r} B",
        "queue_depth": count(chance, 1, 1024),
    }
    if chance.random() < 0.3:
        found["capacity_bytes"] = f"{between(chance, 1.0, 1e16)!r} B"
    return found
