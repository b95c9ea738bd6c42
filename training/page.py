"""docs/models.md: the figures of the bundled models in words and a table."""

from pathlib import Path
from typing import Any

import numpy as np

SHOWN_LENGTHS = ("2048", "8192")
WAYS = ("full", "top blocks")

_HEAD = """# The bundled models

```console
$ kvferry models byte-large              # its dimensions; kvferry run live/quickstart runs it
 model        parameters   layers   query/KV heads   weights   KV per token
 byte-large   3.59 M       8        8/4 x 32         7.18 MB   4.10 kB
```

`byte-large`, `byte-long` (its dimensions, trained on at 8,192 and 9,216 tokens) and `byte-small` (2.00 M) give the
real backend real attention without a download: Transformers of the Qwen3 kind (QK-norm, YaRN by 4 to 8,192 tokens)
that read bytes. Sources and licences: `model/bundled/*/SOURCES.md`.

They are no language models to talk to. **Their attention is more diffuse than a large model's**: a byte carries less
than a token, and eight layers leave little room for heads that specialise. Compare methods, not percentages with a
paper's.

## What they can do
"""

_READ = """A semicolon stands between contexts of 2048 and 8192 bytes.

- **Needles**: ten facts lie at random places of the text, and each is asked for behind it. The first share is of six
  templates that ask in the words of the fact ("The secret code of KEY is "), the second of four in other words.
  Question and answer see all of the context, or 256 tokens: the four 64-token blocks with most attention mass of that
  step, layer and KV head. With four random or the last ones none is found.
- **Blocks for 98 %**: the share of causal blocks (128 queries x 64 keys) that holds this much of the attention mass,
  median (least to most) over the 32 KV heads of all layers.
"""


def write_page(path: Path, models: list[dict[str, Any]]) -> None:
    if not models:
        raise SystemExit("no figures to write a page from: measure the models first")
    rows = [*_loss(models), *_needles(models), *_attention(models), *_heads(models)]
    parts = [_HEAD, _table(["on held-out text", *(m["name"] for m in models)], rows), _READ]
    notes = Path(__file__).with_name("notes.md")
    if notes.is_file():
        parts.append(notes.read_text())
    path.write_text("\n".join(part.rstrip("\n") + "\n" for part in parts))


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def _loss(models: list[dict[str, Any]]) -> list[list[str]]:
    lengths, sizes = list(models[0]["bits_per_byte"]), list(models[0]["repeats"])
    loss = [", ".join(f"{m['bits_per_byte'][n]:.2f}" for n in lengths) for m in models]
    copied = [f"{min(m['repeats'].values()):.2f} to {max(m['repeats'].values()):.2f}" for m in models]
    return [
        [f"bits per byte, windows of {', '.join(lengths)} bytes", *loss],
        [f"second copy of {sizes[0]} to {sizes[-1]} random bytes, guessed right", *copied],
    ]


def _needles(models: list[dict[str, Any]]) -> list[list[str]]:
    trials = next(iter(models[0]["needles"].values()))["trials"]

    def found(model: dict[str, Any], way: str) -> str:
        by_length = [model["needles"][length] for length in SHOWN_LENGTHS]
        return "; ".join(f"{one['same words'][way]:.2f}, {one['other words'][way]:.2f}" for one in by_length)

    return [[f"needles found, of {trials}: {way}", *(found(m, way) for m in models)] for way in WAYS]


def _attention(models: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            f"blocks for {100 * float(mass):g} %",
            *("; ".join(_spread(shares[mass]) for shares in m["block_shares"].values()) for m in models),
        ]
        for mass in ("0.98", "0.9")
    ]


def _heads(models: list[dict[str, Any]]) -> list[list[str]]:
    masses = [np.array(m["retrieving"]) for m in models]
    bits = [np.array(m["entropy_bits"]) for m in models]
    return [
        ["query heads with over a fifth of their mass on the value asked for, 1K back (the best one's mass)"]
        + [f"{(mass > 0.2).sum()} of {mass.size} ({mass.max():.2f})" for mass in masses],
        ["top four blocks that neighbouring steps share", *(f"{m['overlap']:.2f}" for m in models)],
        ["KV entropy after 5-bit quantisation, bits per number (heads)"]
        + [f"{one.mean():.2f} ({one.min():.2f} to {one.max():.2f})" for one in bits],
    ]


def _spread(shares: list[list[float]]) -> str:
    flat = np.array(shares)
    return f"{np.median(flat):.0%} ({flat.min():.0%} to {flat.max():.0%})"
