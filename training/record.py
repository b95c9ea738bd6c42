"""Make the bundled recorded traces again: chunks, selections and keys of byte-large on text not trained on.

    python training/record.py --documentation html/_sources [--output traces/bundled]

The files held out from training are joined and cut: 4,096 bytes of context; for selections 64 more bytes, which are
fed as they are; for keys 512 bytes.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from corpus import corpus

from kvferry.model.models import load_model
from kvferry.model.recording import record, record_keys, record_selections

MODEL = "byte-large"
BEGIN = 100_000
CONTEXT, STEPS, KEYS = 4096, 64, 512
CHUNK_TOKENS = 512
# KVSwap's groups of four tokens; a hundred of them per step, a tenth of the context.
GROUP_TOKENS, GROUPS = 4, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--documentation", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[1] / "traces/bundled")
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = corpus(given.stdlib, given.documentation).held_out[BEGIN:].tolist()
    model = load_model(MODEL)
    context = text[:CONTEXT]
    chunks = record(model, context, chunk_tokens=CHUNK_TOKENS).chunks
    chunks.save(given.output / f"{MODEL}-chunks.npz")
    selections = record_selections(
        model, context, text[CONTEXT : CONTEXT + STEPS], k=GROUPS, group_tokens=GROUP_TOKENS, chunk_tokens=CHUNK_TOKENS
    )
    selections.save(given.output / f"{MODEL}-selections.npz")
    keys = record_keys(model, text[:KEYS])
    keys.save(given.output / f"{MODEL}-keys.npz")
    print(
        f"chunks {chunks.shape}, entropy {chunks.entropy_bits.mean():.2f} bits, "
        f"{chunks.active_blocks.sum() / (chunks.causal_blocks[:, None, None] + 0 * chunks.active_blocks).sum():.0%} "
        f"of blocks active; selections {selections.ids.shape} of {selections.groups}, "
        f"overlap {selections.overlaps().mean():.2f}; keys {keys.vectors.shape}"
    )


if __name__ == "__main__":
    main()
