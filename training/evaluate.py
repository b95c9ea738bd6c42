"""Measure a model that was trained, and write the page about both.

    python training/evaluate.py byte-large --documentation html/_sources --figures out
    python training/evaluate.py byte-small --documentation html/_sources --figures out
    python training/evaluate.py --figures out --page docs/models.md

A model is a bundled one's name, or a folder. The same seed asks the same questions; training used other seeds.
"""

import argparse
import json
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import corpus
from measure import (
    WAYS,
    bits_per_byte,
    block_shares,
    entropies,
    needles_found,
    overlap,
    repeat_accuracy,
    retrieving_heads,
)
from page import write_page
from tasks import OTHER_WORDS, SAME_WORDS, TEMPLATES

from kvferry.model.models import load_model, spec_of

SEED = 20_000_003
LOSS_BYTES = {512: 48, 2048: 20, 8192: 6}  # windows per length
REPEATS = {32: 10, 64: 10, 128: 10, 256: 10, 512: 6, 1024: 4}  # trials per length
NEEDLE_LENGTHS = (512, 1024, 2048, 4096, 8192)
SHARE_LENGTHS = (2048, 8192)
MASSES = (0.98, 0.90)
OVERLAP_TOKENS, OVERLAP_STEPS, OVERLAP_GROUPS = 2048, 64, 4


def measured(name: str, text: np.ndarray, dtype: str, contexts: int) -> dict[str, Any]:
    """All figures of a model; a needle's context holds every template once."""
    model = load_model(name, dtype)
    random = np.random.default_rng(SEED)
    began_s = time.monotonic()

    def windows(length: int, n: int) -> np.ndarray:
        return np.stack([text[i : i + length] for i in random.integers(len(text) - length, size=n)])

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {what}", flush=True)

    spec = spec_of(model, Path(name).name)
    found: dict[str, Any] = {"name": spec.name, "spec": spec.model_dump(), "parameters": spec.parameters}
    found["bits_per_byte"] = {n: bits_per_byte(model, windows(n, count)) for n, count in LOSS_BYTES.items()}
    say(f"bits per byte {found['bits_per_byte']}")
    found["repeats"] = {n: repeat_accuracy(model, n, trials, random) for n, trials in REPEATS.items()}
    say(f"repeats {found['repeats']}")
    found["needles"] = {}
    for length in NEEDLE_LENGTHS:
        found["needles"][length] = _needles(model, text, length, contexts, random)
        say(f"needles at {length}: {found['needles'][length]}")
    found["block_shares"] = {}
    for length in SHARE_LENGTHS:
        shares = block_shares(model, windows(length, 1)[0], MASSES)
        found["block_shares"][length] = {mass: shares.shares(mass).tolist() for mass in MASSES}
    say("block shares")
    found["entropy_bits"] = entropies(model, windows(2048, 1)[0]).tolist()
    found["overlap"] = overlap(
        model, windows(OVERLAP_TOKENS + OVERLAP_STEPS, 1)[0], OVERLAP_STEPS, OVERLAP_GROUPS, group_tokens=64
    )
    found["retrieving"] = retrieving_heads(model, text, 1024, random).tolist()
    say(f"overlap {found['overlap']:.2f}")
    return found


def _needles(
    model: torch.nn.Module, text: np.ndarray, length: int, contexts: int, random: np.random.Generator
) -> dict[str, Any]:
    """Shares found per way, of templates asked in the fact's own words and in others, and per template with all."""
    facts = list(TEMPLATES)
    if length < 1024:  # too short for all ten
        halves = [facts[::2], facts[1::2]]
        contexts *= 2
    else:
        halves = [facts]
    answers: dict[str, dict[str, list[bool]]] = {t.name: {way: [] for way in WAYS} for t in TEMPLATES}
    for n in range(contexts):
        asked = halves[n % len(halves)]
        for way, right in needles_found(model, text, length, asked, random).items():
            for template, one in zip(asked, right):
                answers[template.name][way].append(one)

    def shares(templates: tuple[Any, ...]) -> dict[str, float]:
        return {way: float(np.mean([one for t in templates for one in answers[t.name][way]])) for way in WAYS}

    return {
        "trials": sum(len(one["full"]) for one in answers.values()),
        "same words": shares(SAME_WORDS),
        "other words": shares(OTHER_WORDS),
        "templates": {name: float(np.mean(one["full"])) for name, one in answers.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="to measure; without it the page is written")
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--documentation", type=Path)
    parser.add_argument("--figures", type=Path, required=True, help="folder of NAME.json")
    parser.add_argument("--page", type=Path, default=Path("docs/models.md"))
    parser.add_argument("--contexts", type=int, default=12, help="contexts per length, ten needles in each")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    given.figures.mkdir(parents=True, exist_ok=True)
    if given.model is None:
        write_page(given.page, [json.loads(path.read_text()) for path in sorted(given.figures.glob("byte-*.json"))])
        return
    text = corpus(given.stdlib, given.documentation).held_out
    found = measured(given.model, text, given.dtype, given.contexts)
    (given.figures / f"{found['name']}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
