"""What a real run ran on: software, processor, weights by digest, and what made tokens of its text."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvferry.scenarios.named_files import content_digest
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers")
DRAWN = "drawn token ids"


def ran_on(scenario: Scenario) -> dict[str, Any]:
    """Returns it of this process, which has just run the scenario; nothing of a modelled run."""
    if scenario.backend == "sim":
        return {}
    load = os.getloadavg() if hasattr(os, "getloadavg") else (0.0,)
    return {
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "processor": _processor(scenario.live.processor),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "threads": scenario.live.threads,
        "load_average": round(load[0], 2),
        "weights": _weights(scenario),
        "tokenizer": _tokenizer(scenario),
    }


def drawn_ids(scenario: Scenario) -> str | None:
    """Returns a remark where a real run's prompts are no text; None where they are."""
    if scenario.backend == "sim" or _tokenizer(scenario) != DRAWN:
        return None
    why = "random weights have no tokenizer" if scenario.live.weights == "random" else "the model has no tokenizer.json"
    return (
        f"token ids were drawn at random, as {why}: what was encoded, selected and answered is not what text would give"
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor(named: str) -> str:
    if not named.startswith("cpu"):
        import torch

        if named.startswith("cuda") and torch.cuda.is_available():
            return f"{named}: {torch.cuda.get_device_name(named)}"
        return named
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "hardware")))
    return f"{named}: {next(names, None) or platform.processor() or platform.machine()}"


def _folder(scenario: Scenario) -> Path | None:
    """Returns where the model's weights lie; None: they were drawn."""
    if scenario.live.weights == "random":
        return None
    from kvferry.model.models import folder_of

    try:
        return folder_of(scenario.live.weights or scenario.model.name)
    except InputError:
        # It was there when the run began.
        return None


def _weights(scenario: Scenario) -> str:
    folder = _folder(scenario)
    if folder is None:
        return f"drawn from seed {scenario.seed}"
    return f"sha256:{content_digest(folder)}"


def _tokenizer(scenario: Scenario) -> str:
    try:
        from kvferry.model.prompts import tokenizer_of
    except ImportError:
        return DRAWN
    return tokenizer_of(_folder(scenario), scenario.model.vocabulary)
