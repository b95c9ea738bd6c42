"""Scenarios of conversations whose KV is kept, from the ends of what is valid: workload, budget and policies."""

from random import Random
from typing import Any

import extreme_assist
from ends import between, count, seconds

# Turns, steps of all layers, and blocks of heads of all prompts: more are valid, and take long.
MOST_TURNS, MOST_STEPS, MOST_UNITS = 30, 200, 10_000
_PLACES = ("drop", "memory", "flash", "cloud", "memory-flash", "memory-cloud", "flash-cloud", "memory-flash-cloud")
_LOADING = ("ferry", "ferry-three-way", "ferry-horizon", "sparkv", "cachegen", "stream-only", "local-prefill")
_DECODING = (
    "vllm",
    "full-flash",
    "kvswap",
    "flexgen",
    "infinigen",
    "shadowkv",
    "quest",
    "dynakv",
    "sliding-window",
    "specontext",
    "streaming-llm",
    "os-paging",
)
# Most often one that leaves the device its KV, beside a system that decodes from memory: others are refused at once.
_ASSISTING = ("tokens-only", "tokens-only", "tokens-only", "pd-device", "speculative-edge", "cloud-only")


def workload(chance: Random, layers: int, kv_heads: int) -> dict[str, Any]:
    turns = count(chance, 1, MOST_TURNS)
    found: dict[str, Any] = {
        "kind": "session",
        "turns": turns,
        "context": 0 if chance.random() < 0.05 else count(chance, 1, 10**5 // turns),
        "question": count(chance, 1, 10**4 // turns),
        "output": count(chance, 1, 10**4 // turns),
        "decoded": count(chance, 2, max(2, MOST_STEPS // layers // turns)),
    }
    longest = found["context"] + turns * (found["question"] + found["output"])
    found["block"] = min(10**6, max(count(chance, 1, 10**6), turns * longest * layers * kv_heads // MOST_UNITS))
    more = {
        "beginning": count(chance, 1, 10**4),
        "spread": chance.choice([0.0, 1e-9, 1.0]),
        "contexts": count(chance, 1, 100_000),
        "zipf": chance.choice([0.0, 1.0, 10.0]),
        "at_once": count(chance, 1, 1000),
        "turns_each": between(chance, 1.0, 10_000.0),
        "think": seconds(chance, 1e7),
        "think_spread": chance.choice([0.0, 1e-9, 3.0]),
        "pause": seconds(chance, 1e7),
        "in_cloud": "nothing",
        "content": chance.choice(["text", "vlm"]),
    }
    return found | {key: more[key] for key in chance.sample(sorted(more), chance.randint(0, 5))}


def budget(chance: Random) -> dict[str, Any]:
    found = {
        "kept_memory": f"{between(chance, 1.0, 1e12)!r} B",
        "kept_flash": f"{between(chance, 1.0, 1e14)!r} B",
        "kv": f"{between(chance, 1.0, 1e12)!r} B",
        "kv_share": between(chance, 1e-6, 1.0),
    }
    return {key: found[key] for key in chance.sample(sorted(found), chance.randint(1, 2))}


def policies(chance: Random) -> dict[str, Any]:
    # A cloud that helps, by name or with settings of its own.
    name = chance.choice(_ASSISTING)
    found = {
        "keep": chance.choice(_PLACES),
        "evict": chance.choice(["lru", "cost", "predicted", "belady"]),
        "load": chance.choice(_LOADING),
        "decode": chance.choice([*_DECODING, {"name": "kvswap", "selected_tokens": count(chance, 1, 10**5)}]),
        "assist": chance.choice([name, {"name": name, **extreme_assist.policies(chance)}]),
    }
    drawn = {key: found[key] for key in chance.sample(sorted(found), chance.randint(1, 3))}
    if "assist" in drawn and chance.random() < 0.8:
        drawn["decode"] = "vllm"
    return drawn
