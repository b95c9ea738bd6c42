"""docs/models.md: the figures of the bundled models in words and tables."""

from pathlib import Path
from typing import Any

import numpy as np

SHOWN_LENGTHS = ("512", "2048", "8192")
WAYS = ("full", "top blocks", "random blocks", "window")

_HEAD = """# The bundled models

```console
$ kvferry models byte-large              # its dimensions; kvferry run live/quickstart runs it
```

Two small Transformers come with the project, so that the real backend and its tests have real attention without a
download: `byte-large` and `byte-small`, siblings of the Qwen3 kind (8 layers, 8 query heads and 4 KV heads of 32
dimensions, QK-norm, YaRN by 4 to 8,192 tokens). A token is a byte; ids 256 to 259 are specials. They lie in
`model/bundled/` as bfloat16 safetensors, with sources and licences in `SOURCES.md`. `training/evaluate.py` writes this
page; its figures are of the bfloat16 weights.

They are no language models to talk to. **Their attention is more diffuse than a large model's**: a byte carries less
than a token, and eight layers leave little room for heads that specialise. Compare methods, not percentages with a
paper's.
"""

_NEEDLES = """## Needles

Ten facts, one per template, at random places of held-out text before its last 256 bytes, each asked for behind the
text; a hit is right to its last byte, decoded greedily. Six templates ask in the words of the fact ("The secret code of
KEY is "), four in other words. Prefill is dense; question and answer see all of the context, or 256 tokens: the four
64-token blocks with most attention mass of that step, layer and KV head, four random ones, or the last four.
"""

_ATTENTION = """## Attention

*Blocks for 98 %*: the share of causal blocks (128 queries x 64 keys, per KV head) that holds this much of the attention
mass on held-out text; median over the 32 KV heads of all layers (least to most).
"""


def write_page(path: Path, models: list[dict[str, Any]]) -> None:
    if not models:
        raise SystemExit("no figures to write a page from: measure the models first")
    parts = [_HEAD, _sizes(models), _loss(models), _NEEDLES, _needles(models), _ATTENTION]
    parts += [_attention(models)]
    notes = Path(__file__).with_name("notes.md")
    if notes.is_file():
        parts.append(notes.read_text())
    path.write_text("\n".join(part.rstrip("\n") + "\n" for part in parts))


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def _sizes(models: list[dict[str, Any]]) -> str:
    rows = [
        [m["name"], f"{m['spec']['hidden']}", f"{m['spec']['ffn']}", f"{m['parameters'] / 1e6:.2f} M"] for m in models
    ]
    return _table(["model", "hidden", "FFN", "parameters"], rows)


def _loss(models: list[dict[str, Any]]) -> str:
    lengths = list(models[0]["bits_per_byte"])
    loss = [[m["name"], *(f"{m['bits_per_byte'][n]:.2f}" for n in lengths)] for m in models]
    sizes = list(models[0]["repeats"])
    copies = [[m["name"], *(f"{m['repeats'][n]:.2f}" for n in sizes)] for m in models]
    return (
        "## Loss and copying\n\nBits per byte of held-out files, by the bytes of a window:\n\n"
        + _table(["model", *lengths], loss)
        + "\nRandom bytes said twice: the share of the second copy that is guessed right, by its length.\n\n"
        + _table(["model", *sizes], copies)
    )


def _needles(models: list[dict[str, Any]]) -> str:
    rows = []
    for model in models:
        for length in SHOWN_LENGTHS:
            found = model["needles"][length]
            cells = [f"{found['same words'][way]:.2f} / {found['other words'][way]:.2f}" for way in WAYS]
            rows.append([model["name"], length, *cells])
    trials = next(iter(models[0]["needles"].values()))["trials"]
    return f"Shares of {trials} trials, same words / other words:\n\n" + _table(["model", "context", *WAYS], rows)


def _attention(models: list[dict[str, Any]]) -> str:
    rows = []
    for m in models:
        for length, by_mass in m["block_shares"].items():
            rows.append([m["name"], length, *(_spread(by_mass[mass]) for mass in ("0.98", "0.9"))])
    text = _table(["model", "context", "blocks for 98 %", "blocks for 90 %"], rows)
    for m in models:
        mass = np.array(m["retrieving"])
        entropy = np.array(m["entropy_bits"])
        text += (
            f"\n`{m['name']}`: {int((mass > 0.2).sum())} of {mass.size} query heads put over a fifth of their mass on "
            f"a needle's value 1K back while it is asked for (the best one {mass.max():.2f}). Neighbouring steps share "
            f"{m['overlap']:.2f} of their four top blocks. KV entropy after 5-bit quantisation: "
            f"{entropy.mean():.2f} bits per number (heads from {entropy.min():.2f} to {entropy.max():.2f}).\n"
        )
    return text


def _spread(shares: list[list[float]]) -> str:
    flat = np.array(shares)
    return f"{np.median(flat):.0%} ({flat.min():.0%} to {flat.max():.0%})"
