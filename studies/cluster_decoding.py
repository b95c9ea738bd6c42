"""DynaKV's systems decode a text for real, their clusters in a file: python studies/cluster_decoding.py [--output FILE]

Through the pipeline that scenarios run, token by token: all KV that a step leaves comes from what it attended, and
errors add up. Beside full attention over the same text: ``agree``, next tokens alike, and ``KL``, how far next-token
distributions are apart, in nats; over each quarter of what is decoded.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from quality_systems import decoded

from kvferry.backends.live.decoding.indexes.table import index_maker
from kvferry.backends.live.quality.full_attention import exact
from kvferry.backends.live.quality.tasks import Task
from kvferry.model.decoder import Decoder
from kvferry.model.models import load_model, spec_of
from kvferry.model.prompts import Prompts
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS

SYSTEMS = ("dynakv", "pqcache", "clusterkv", "no-cluster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--decoded", type=int, default=1024)
    parser.add_argument("--share", type=float, default=0.1, help="of all tokens, read in every step")
    parser.add_argument("--threshold", type=float, default=1.0, help="of dynakv")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    parser.add_argument("--output", type=Path, help="a file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model("byte-large", "float32")
    prompts = Prompts(Path(model.config.name_or_path), model.config.vocab_size, None, 0)
    task = Task(*map(list, prompts.tokens(0, asked.context, asked.decoded)))
    true = exact(model, task)
    full = true.logits[1:].log_softmax(-1)
    rows: dict[str, dict[str, list[float]]] = {}
    for system in asked.systems:
        began_s = perf_counter()
        policies = {"selected_share": asked.share} | ({"threshold": asked.threshold} if system == "dynakv" else {})
        roles = DECODE_SYSTEMS[system].with_policies(policies).roles
        lengths = {"context": asked.context, "output": asked.decoded}
        plan = plan_of(roles, spec_of(model), sequences=1, **lengths, budget_bytes=1e12)
        assert plan.keys.index is not None
        room_tokens = plan.layout.blocks * plan.choice.group_tokens
        sample = torch.tensor([task.context])
        index = index_maker(plan.keys.index.kind)(
            Decoder(model), sample, plan.keys.index, sequences=1, room_tokens=room_tokens
        )
        with TemporaryDirectory() as folder:
            logits, *_ = decoded(plan, model, task, true, index, Path(folder))
        # The first token comes from prefill.
        own = logits[1:].log_softmax(-1)
        quarters = np.array_split(np.arange(len(own)), 4)
        agree = (own.argmax(-1) == full.argmax(-1)).float()
        apart = (full.exp() * (full - own)).sum(-1)
        rows[system] = {
            "agree": [round(float(agree[of].mean()), 4) for of in quarters],
            "KL": [round(float(apart[of].mean()), 5) for of in quarters],
        }
        print(f"{system}: {rows[system]}, {perf_counter() - began_s:.0f} s", file=sys.stderr)
    if asked.output is not None:
        settings = {key: value for key, value in vars(asked).items() if key not in ("output", "systems")}
        asked.output.write_text(json.dumps({"settings": settings, "systems": rows}, indent=1))


if __name__ == "__main__":
    main()
