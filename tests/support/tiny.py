"""Scenarios and models small enough to run many times in a second, one of each workload, built in one place."""

from pathlib import Path
from typing import Any

import yaml

from kvferry.pipelines.record import Run, TurnRecord
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import FlashSpec

# What `load_scenario` reads; a test changes what it is about.
LOADING: dict[str, Any] = {
    "name": "tiny",
    "system": "ferry",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "50 Mbit/s", "rtt": "4 ms"},
    "workload": {"kind": "context-reuse", "context": 4096},
}
DECODING: dict[str, Any] = {
    "name": "tiny",
    "system": "kvswap",
    "device": {"extends": "tiny", "storage": {"bytes_per_s": "100 MB/s", "latency_s": "50 us"}},
    "model": "tiny",
    "link": {"rate": "1 MB/s"},
    "workload": {"kind": "decode", "context": 1024, "batch": 2, "output": 12},
    "measure": "decode",
    "budget": {"kv_share": 0.9},
}
ASSISTED: dict[str, Any] = {
    "name": "tiny",
    "system": "pd-device",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "50 Mbit/s", "rtt": "4 ms"},
    "machines": {"cloud": {"device": "rtx-5080-laptop", "model": "tiny"}},
    "workload": {"kind": "assist", "prompt": 4096, "output": 20, "devices": 2, "resident": True},
    "policies": {"assist": {"name": "optimised", "tokens": 4}},
}
TURNS: dict[str, Any] = {
    "name": "tiny",
    "system": "on-flash",
    "device": DECODING["device"],
    "model": "tiny",
    "link": {"rate": "50 Mbit/s", "rtt": "4 ms"},
    "workload": {
        "kind": "session",
        "turns": 4,
        "context": 640,
        "question": 40,
        "output": 6,
        "turns_each": 2.0,
        "think": "2 s",
        "block": 64,
    },
    # Four blocks of 32 KiB.
    "budget": {"kept_memory": "128 KiB"},
}
# What studies and searches begin with.
STREAMED: dict[str, Any] = {
    "name": "small",
    "system": "stream-only",
    "device": "rtx-5080-laptop",
    "model": "tiny",
    "link": {"rate": "80 Mbit/s"},
    "workload": {"kind": "context-reuse", "context": "4Ki"},
}
# The tiny scenario of each workload, by kind.
TINY: dict[str, dict[str, Any]] = {"context-reuse": LOADING, "decode": DECODING, "assist": ASSISTED, "session": TURNS}

# A model that a CPU runs in milliseconds, and scenarios that run it for real.
LIVE_MODEL: dict[str, Any] = {
    "name": "small",
    "layers": 3,
    "hidden": 64,
    "query_heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "ffn": 96,
    "vocabulary": 256,
    "tied_embeddings": True,
    "weight_bits": 32,
    "kv_value_bytes": 4,
    "source": "made up",
}
# The same with a latent cache: one vector of 24 numbers and a rotary key of 8 for all heads.
LIVE_LATENT_MODEL: dict[str, Any] = LIVE_MODEL | {
    "name": "small-latent",
    "kv_heads": 1,
    "head_dim": 20,
    "latent": {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 10},
}
# Two processes decode in place of four, each of which starts with a run.
LIVE_LOADING: dict[str, Any] = {
    "name": "live",
    "backend": "torch",
    "system": "ferry",
    "device": {"extends": "laptop-cpu", "decompressor": {"workers": 1}},
    "model": LIVE_MODEL,
    "link": {"rate": "100 Mbit/s", "rtt": "2 ms"},
    "workload": {"kind": "context-reuse", "context": 640, "question": 16, "output": 3, "chunk_tokens": 256},
    "live": {"weights": "random"},
}
LIVE_DECODING: dict[str, Any] = {
    "name": "live",
    "backend": "torch",
    "system": "kvswap",
    "device": {"extends": "laptop-cpu", "storage": "nvme"},
    "model": LIVE_MODEL,
    "link": {"rate": "100 Mbit/s"},
    "workload": {"kind": "decode", "context": 150, "batch": 2, "output": 14},
    "policies": {"group_tokens": 4, "selected_tokens": 164, "compression": 4},
    "budget": {"kv": "10 MiB"},
    "live": {"weights": "random", "paced": False},
}
# The same with a system's own policies.
LIVE_PLAIN: dict[str, Any] = {key: value for key, value in LIVE_DECODING.items() if key != "policies"}
# A bundled model on both sides: prompts are sent as text, which random weights have no tokens for.
LIVE_ASSISTED: dict[str, Any] = ASSISTED | {
    "backend": "torch",
    "device": "laptop-cpu",
    "model": "byte-small",
    "machines": {"cloud": {"device": "laptop-cpu", "model": "byte-small"}},
    "workload": {
        "kind": "assist",
        "prompt": 200,
        "beginning": 20,
        "question": 40,
        "output": 6,
        "resident": True,
        "privacy": "may-leave",
    },
    "policies": {"assist": {"name": "optimised", "tokens": 3, "ratio": 0.5}},
}
# A trained model: what random weights say hardly depends on KV. Blocks of 16 tokens take 128 KiB; two stay in memory.
LIVE_TURNS: dict[str, Any] = {
    "name": "live",
    "backend": "torch",
    "system": "on-flash",
    "device": {"extends": "laptop-cpu", "storage": "nvme", "decompressor": {"workers": 1}},
    "model": "byte-small",
    "precision": {"kv_value_bytes": 4},
    "link": {"rate": "100 Mbit/s", "rtt": "2 ms"},
    "workload": {
        "kind": "session",
        "turns": 6,
        "contexts": 2,
        "context": 70,
        "question": 9,
        "output": 7,
        "turns_each": 3.0,
        "block": 16,
        "in_cloud": "nothing",
    },
    "budget": {"kept_memory": "256 KiB", "kept_flash": "8 MiB"},
    "live": {"dtype": "float32", "paced": False},
}
LIVE: dict[str, dict[str, Any]] = {
    "context-reuse": LIVE_LOADING,
    "decode": LIVE_DECODING,
    "assist": LIVE_ASSISTED,
    "session": LIVE_TURNS,
}


def changed(described: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A description with some of its values changed; a mapping changes what it names and keeps the rest."""
    whole = dict(described)
    for key, value in changes.items():
        both = isinstance(whole.get(key), dict) and isinstance(value, dict)
        whole[key] = {**whole[key], **value} if both else value
    return whole


def as_yaml(described: dict[str, Any]) -> str:
    """A description as a user would write its file, in its order."""
    return yaml.safe_dump(described, sort_keys=False, default_flow_style=None)


def seeded(*seeds: int) -> list[Scenario]:
    """The points of a small study: one per seed."""
    return [tiny(STREAMED, link={"rtt": "4 ms"}, seed=seed) for seed in seeds]


def tiny(described: dict[str, Any], *overrides: str, **changes: Any) -> Scenario:
    """The scenario of a changed description, `overrides` as ``--set`` writes them."""
    return load_scenario(changed(described, **changes), overrides)


def tiny_model(**changes: Any) -> ModelSpec:
    """A model with two query heads to each of two KV heads, whose weights are drawn in no time."""
    described: dict[str, Any] = {
        "name": "tiny",
        "layers": 2,
        "hidden": 32,
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "ffn": 48,
        "vocabulary": 61,
        "source": "made up: two query heads to each of two KV heads",
    }
    return ModelSpec(**described | changes)


def by_hand_model(**changes: Any) -> ModelSpec:
    """A model of small round numbers, whose weights take a byte and embeddings and KV two."""
    described: dict[str, Any] = {
        "name": "by-hand",
        "layers": 3,
        "hidden": 10,
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 5,
        "ffn": 20,
        "vocabulary": 100,
        "weight_bits": 8,
        "embedding_bits": 16,
        "kv_value_bytes": 2,
        "source": "made up",
    }
    return ModelSpec(**described | changes)


def unit_model(kv_value_bytes: float, layers: int = 2) -> ModelSpec:
    """Layers in which every dimension is 1, to calculate with by hand: a token's KV is two values per layer."""
    ones = dict.fromkeys(("hidden", "query_heads", "kv_heads", "head_dim", "ffn", "vocabulary"), 1)
    return ModelSpec(name="unit", layers=layers, **ones, kv_value_bytes=kv_value_bytes, source="made up")


def measured(folder: Path, **changes: Any) -> Scenario:
    """A load on the device and model that a calibration wrote into a folder."""
    described = changed(
        LOADING,
        name="measured",
        device=str(folder / "profile.yaml"),
        model=str(folder / "model.yaml"),
        link={"rate": "8 Mbit/s"},
        workload={"context": 3000, "output": 3},
    )
    return tiny(described, **changes)


# Round numbers: a page of 16 KiB takes 16 us on a channel and 8 us on the bus.
ROUND_FLASH = FlashSpec(
    host_s=5e-6,
    command_s=2e-6,
    partial_s=10e-6,
    page_read_s=50e-6,
    page_program_s=200e-6,
    channels=2,
    dies=2,
    channel_bytes_per_s=1024 / 1e-6,
    bus_bytes_per_s=2 * 1024 / 1e-6,
)


def turns(run: Run) -> tuple[TurnRecord, ...]:
    """The turns of a run that must have come to its end."""
    assert run.outcome == "done", run.why
    assert run.sessions is not None
    return run.sessions.turns
