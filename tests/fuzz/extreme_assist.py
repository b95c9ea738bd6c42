"""Scenarios of devices that a cloud helps, from the ends of what is valid: workload, machines and policies."""

from random import Random
from typing import Any

from ends import between, count, seconds

# Requests, and tokens of all answers: more are valid, and take long.
MOST_REQUESTS, MOST_TOKENS = 200, 20_000


def workload(chance: Random) -> dict[str, Any]:
    prompt = count(chance, 2, 10**6)
    requests = count(chance, 1, MOST_REQUESTS)
    found: dict[str, Any] = {
        "kind": "assist",
        "prompt": prompt,
        "output": count(chance, 1, MOST_TOKENS // requests),
        "devices": count(chance, 1, MOST_REQUESTS),
        "requests": requests,
    }
    fixed = chance.choice([0, prompt - 1, chance.randint(0, prompt - 1)])
    found["beginning"] = chance.choice([0, fixed, chance.randint(0, fixed)])
    found["question"] = fixed - found["beginning"]
    if chance.random() < 0.5:
        found["arrivals"] = {"rate": f"{between(chance, 1e-6, 1e6)!r} Hz", "burstiness": between(chance, 1.0, 1000.0)}
    more = {
        "spread": chance.choice([0.0, 1e-9, 1.0]),
        "scenes": count(chance, 1, 1000),
        "lora": f"{between(chance, 1.0, 1e12)!r} B",
        "least_ratio": between(chance, 1e-9, 1.0),
        "tolerable_tpot": f"{between(chance, 1e-9, 1e6)!r} s",
        "resident": chance.random() < 0.5,
        "privacy": chance.choice(["may-leave", "stays"]),
        "fault": {
            "what": chance.choice(
                ["unreachable", "dies", "stalls", "damaged-mask", "other-mask", "other-tokenizer"],
            ),
            "tokens": count(chance, 1, 10**6),
        },
        "handling": {
            "prepare": seconds(chance, 1e6),
            "forward": seconds(chance, 1e6),
            "refine_token": seconds(chance, 10),
            "unpack_token": seconds(chance, 10),
            "prompt_token_bytes": f"{between(chance, 1e-6, 1e9)!r} B",
            "response_bytes": f"{between(chance, 1e-6, 1e9)!r} B",
        },
    }
    return found | {key: more[key] for key in chance.sample(sorted(more), chance.randint(0, 3))}


def machines(chance: Random, device: Any, model: Any) -> dict[str, Any]:
    """One cloud that does all, or machines that prefill beside others that decode."""
    one = lambda: {"device": device(chance, needs_storage=False), "model": model(chance)}  # noqa: E731
    if chance.random() < 0.7:
        return {"cloud": one() | ({"count": count(chance, 1, 20)} if chance.random() < 0.3 else {})}
    prefill, decode = one(), one()
    # What one has prefilled the other must be able to read.
    return {"prefill": prefill | {"count": 2}, "decode": decode | {"model": prefill["model"]}}


def policies(chance: Random) -> dict[str, Any]:
    assist = {
        "tokens": count(chance, 1, 10**6),
        "ratio": between(chance, 1e-9, 1.0),
        "smoothing": chance.choice(["causal", "paper"]),
        "draft": count(chance, 1, 100),
        "accepted": between(chance, 1e-9, 1.0),
        "patience": chance.choice(["auto", "planned", None, f"{between(chance, 1e-6, 1e6)!r} s"]),
    }
    serving = {
        "slots": count(chance, 1, 100_000),
        "tpot": f"{between(chance, 1e-9, 1e6)!r} s",
        "chunk_tokens": chance.choice([None, count(chance, 16, 10**6)]),
        "alone_tokens": count(chance, 16, 10**6),
    }
    return {
        role: {key: of[key] for key in chance.sample(sorted(of), chance.randint(1, 2))}
        for role, of in (("assist", assist), ("serving", serving))
        if chance.random() < 0.7
    }
