"""What encodings of KV cost in quality, by codec and level: python studies/kv_distortion.py [--output FILE]

The KV of real text on a bundled model is encoded and decoded chunk by chunk, as a store would hold it. Columns:

relative_error  root mean square of the difference, over that of the numbers (keys and values, all layers)
kl_nats         mean divergence of the next-token distribution from that over the exact KV, over the text that follows
bits_per_value  of the encoded chunks

Written as the table that `kvferry.codecs.sizes` reads.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from kvferry.backends.live.loading.distortion import relative_errors
from kvferry.backends.live.loading.library import chunks_of
from kvferry.codecs import codec
from kvferry.model.models import load_model, spec_of
from kvferry.model.prompts import Prompts
from kvferry.model.session import Session, cache_of

CHUNK_TOKENS = 1024


def logits(session: Session, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities float[tokens, vocabulary] of what follows each of `ids` behind the context."""
    with torch.no_grad():
        found = session.decoder.model(ids, past_key_values=cache_of(session.kv)).logits[0]
    return F.log_softmax(found.float(), dim=-1)


def measured(exact: Session, ids: torch.Tensor, name: str, level: int) -> tuple[float, float, float]:
    """Relative error, divergence and bits per value of one codec's level."""
    kv = exact.kv
    coded = Session(exact.decoder.model, exact.context[0].tolist(), chunk_tokens=CHUNK_TOKENS, room=ids.shape[1])
    n_bytes, values = 0, 0
    for t, l, h in np.ndindex(len(kv.tokens), kv.layers, kv.heads):
        keys, kept = (part.float().numpy() for part in kv.chunk(t, l, h))
        data = codec.encode(name, keys, kept, level, l / kv.layers)
        coded.load(t, l, h, *map(torch.from_numpy, codec.decode(data)))
        n_bytes, values = n_bytes + len(data), values + keys.size + kept.size
    true, own = logits(exact, ids), logits(coded, ids)
    kl = float((true.exp() * (true - own)).sum(-1).mean())
    return relative_errors(chunks_of(exact), name, kv.layers)[level], kl, 8 * n_bytes / values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("codecs.sizes.csv"))
    parser.add_argument("--model", default="byte-large")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--follow", type=int, default=256)
    parser.add_argument("--texts", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(arguments.model)
    folder = Path(model.config._name_or_path)
    prompts = Prompts(folder, spec_of(model, arguments.model).vocabulary, None, 0)
    exact = []
    for n in range(arguments.texts):
        context, after = prompts.tokens(n, arguments.context, arguments.follow)
        session = Session(model, context, chunk_tokens=CHUNK_TOKENS, room=arguments.follow)
        session.prefill()
        exact.append((session, torch.tensor([after])))
    with arguments.output.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("codec", "level", "relative_error", "kl_nats", "bits_per_value", "model", "texts"))
        for name, chosen in codec.CODECS.items():
            for level in range(chosen.levels):
                figures = np.mean([measured(*one, name, level) for one in exact], axis=0)
                rows.writerow((name, level, *(f"{x:.4g}" for x in figures), arguments.model, arguments.texts))
                print(name, level, *(f"{x:.4g}" for x in figures), flush=True)


if __name__ == "__main__":
    main()
