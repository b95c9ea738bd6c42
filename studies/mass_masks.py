"""What a mask that holds 98 % of attention's mass keeps, and what leaving out the rest costs in the answer.

python studies/mass_masks.py [--model byte-large] [--tokens 4096] [--dtype float32] [--device cpu]

Masks are made on the bytes of a Python file, which a byte-level model makes sense of.
"""

import argparse
from pathlib import Path

from transformers import PreTrainedModel

from kvferry.model.attention import BlockSparse
from kvferry.model.models import load_model
from kvferry.model.recording import record
from kvferry.model.session import Session

CHUNK = 1024


def from_mass(model: PreTrainedModel, tokens: int) -> None:
    text = list(Path(argparse.__file__).read_bytes()[:tokens])
    recorded = record(model, text[:-1], chunk_tokens=CHUNK)
    trace, wanted = recorded.chunks, recorded.session.read(text[-1:])
    kept = trace.active_blocks / trace.causal_blocks[:, None, None]
    session = Session(model, text[:-1], chunk_tokens=CHUNK, attention=BlockSparse(recorded.masks))
    session.prefill()
    got = session.read(text[-1:])
    heads = kept.mean(axis=0)
    print(
        f"masks from mass, {len(text)} bytes of Python: 98 % is held by {kept.mean():.0%} of the blocks, by head from"
    )
    print(f"  {heads.min():.0%} to {heads.max():.0%}; entropy {trace.entropy_bits.mean():.2f} bits per value")
    off, same = float((got - wanted).abs().max() / wanted.std()), bool(got.argmax() == wanted.argmax())
    print(f"  sparse prefill: logits off by {off:.1e} of their deviation, same first token: {same}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="byte-large", help="a byte-level model, by name or folder")
    arguments.add_argument("--tokens", type=int, default=4096)
    arguments.add_argument("--dtype", default="float32")
    arguments.add_argument("--device", default="cpu")
    given = arguments.parse_args()
    from_mass(load_model(given.model, given.dtype, given.device), given.tokens)


if __name__ == "__main__":
    main()
