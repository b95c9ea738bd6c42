"""The share of attention mass on what selectors choose, measured: python studies/attention_mass.py [--output FILE]

A bundled model decodes the continuation of real texts. Of every step, layer and KV head the true attention mass is
known from full attention; what a selector chose, and what is attended besides (the newest tokens), holds a share. Key
caches, bounds and landmarks choose in the pipeline that scenarios run, by the queries that they get there. Clusters,
the retrieval head and windows choose by the queries of full attention. Columns:

selector, per_head, upkeep    as a scenario names them; an upkeep where blocks are clusters, else any
block_tokens                  of a KV block
selected_tokens               by the selector; whole blocks and the newest tokens are attended to besides
text                          which of the texts, from 0
attended_share                of the tokens that there are, in the mean
attention_mass                on them, in the mean over steps, layers and KV heads

Written as the table that `kvferry.policies.decode.attention_mass` reads.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from quality_choices import head_scores, top
from quality_clusters import Tended, chosen
from quality_systems import attended, decoded
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.indexes.table import INDEXES
from kvferry.backends.live.quality.full_attention import Exact, Told, exact, told
from kvferry.backends.live.quality.tasks import Task, texts
from kvferry.model.decoder import Decoder
from kvferry.model.models import load_model
from kvferry.model.prompts import Prompts
from kvferry.model.retrieval_head import load_head
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.scenarios.loader import load_scenario

SELECTED = (32, 64, 128, 256, 512, 1024, 2048)
# By system, with policies under which its index has the width that the model's keys allow.
INDEXED = {
    "kvswap": {"group_tokens": 8, "compression": 8.0, "reuse": False},
    "infinigen": {"compression": 4.0},
    "infinigen-star": {"compression": 4.0},
    "loki": {"compression": 4.0},
    "shadowkv": {},
    "quest": {},
    "no-cluster": {"selected_share": None},
}
CLUSTERED = ("dynakv", "pqcache", "clusterkv")
# selector, per_head, upkeep and block_tokens.
Key = tuple[str, bool, str, int]


def indexed(
    model: PreTrainedModel, task: Task, true: Exact, sample: torch.Tensor
) -> Iterator[tuple[Key, float, float]]:
    """Attended share and mass of the systems with an index, in the pipeline."""
    decoder = Decoder(model)
    for name, policies in INDEXED.items():
        began_s = perf_counter()
        for selected in SELECTED:
            settings = [
                f"workload.context={len(task.context)}",
                f"workload.output={len(task.said)}",
                "workload.batch=1",
            ]
            scenario = load_scenario("kvswap/live", [*settings, "policies={}", "budget={kv_share: 0.9}"])
            system = DECODE_SYSTEMS[name].with_policies({**policies, "selected_tokens": selected})
            plan = plan_for(scenario, system)
            assert plan.keys.index is not None
            room_tokens = plan.layout.blocks * plan.choice.group_tokens
            index = INDEXES[plan.keys.index.kind](
                decoder, sample, plan.keys.index, sequences=1, room_tokens=room_tokens
            )
            with TemporaryDirectory() as folder:
                _, tokens, _, flow = decoded(plan, model, task, true, index, Path(folder))
            mass = float(np.mean(attended(tokens, true).held))
            selector = system.roles.selector
            key = plan.keys.index.kind, selector.per_head, "", plan.choice.group_tokens
            yield key, flow.record.attended / flow.record.attendable, mass
        print(f"{name}: {perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)


def whole(text: Told) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Step, layer and true mass [KV heads, tokens] up to the step's own."""
    for step, position in enumerate(text.steps):
        for layer in range(len(text.mass)):
            yield step, layer, text.mass[layer, :, step, : position + 1]


def held(mass: torch.Tensor, selected: torch.Tensor) -> tuple[float, float]:
    """Share of the tokens, and of the mass, of what is selected, bool[KV heads, tokens before], and the new token."""
    there = torch.cat([selected, torch.ones(len(selected), 1, dtype=torch.bool)], 1)
    return float(there.float().mean()), float(((mass * there).sum(1) / mass.sum(1)).mean())


def clustered(model: PreTrainedModel, text: Told) -> Iterator[tuple[Key, float, float]]:
    """Whole clusters by their centroids, the best first, until they hold as many tokens."""
    heads, scale = Decoder(model).heads, Decoder(model).head_dim ** -0.5
    for name in CLUSTERED:
        layout = {"name": "cluster-pools", "group_tokens": 16, "room": 16}
        for selected in SELECTED:
            policies = {"selected_tokens": selected, "selected_share": None, "layout": layout}
            kept, at = Tended(name, policies, text, model), -1
            found = []
            for step, layer, mass in whole(text):
                if step != at:
                    at = step
                    kept.go_to(text.steps[step])
                queries = torch.from_numpy(text.recording.queries[layer, :, :, text.steps[step]])
                choice = chosen(kept, slice(layer * heads, (layer + 1) * heads), queries, scale)
                found.append(held(mass, torch.from_numpy(choice.whole(selected))))
            upkeep = {"dynakv": "adaptive-clusters", "pqcache": "static-clusters", "clusterkv": "local-clusters"}[name]
            yield ("centroids", True, upkeep, 16), *np.mean(found, axis=0)


def others(model: PreTrainedModel, text: Told) -> Iterator[tuple[Key, float, float]]:
    """The retrieval head, whose choice serves all layers, and windows of the newest tokens."""
    heads = Decoder(model).heads
    scores = head_scores(load_head(model), text, text.steps)
    for selected in SELECTED:
        found = [held(mass, top(scores[step], selected)) for step, _, mass in whole(text)]
        yield ("retrieval-head", True, "", 1), *np.mean(found, axis=0)
        for name, sinks in (("window", 0), ("window+sinks", 4)):
            found = []
            for _, _, mass in whole(text):
                newest = torch.arange(mass.shape[1] - 1) >= mass.shape[1] - 1 - (selected - sinks)
                newest[:sinks] = True
                found.append(held(mass, newest.expand(heads, -1)))
            yield (name, False, "", 1), *np.mean(found, axis=0)


def write(path: Path, found: dict[Key, list[tuple[float, float]]], model: str, context: int) -> None:
    """The table: of each text, one after the other, a row per number of selected tokens."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        heading = "selector", "per_head", "upkeep", "block_tokens", "selected_tokens", "text"
        rows.writerow((*heading, "attended_share", "attention_mass", "model", "context_tokens"))
        for key, pairs in found.items():
            name, per_head, upkeep, block_tokens = key
            for n, (share, mass) in enumerate(pairs):
                text, at = divmod(n, len(SELECTED))
                figures = SELECTED[at], text, f"{share:.4g}", f"{mass:.4g}"
                rows.writerow((name, str(per_head).lower(), upkeep, block_tokens, *figures, model, context))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("policies/decode/attention_mass.csv"))
    parser.add_argument("--model", default="byte-large")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--said", type=int, default=9, help="tokens after each text")
    parser.add_argument("--texts", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, stored = (load_model(asked.model, dtype) for dtype in ("float32", "bfloat16"))
    prompts = Prompts(Path(model.config.name_or_path), model.config.vocab_size, None, 0)
    sample = torch.tensor([prompts.tokens(1000, min(1024, asked.context), 0)[0]])
    # By key: (share, mass) of each text and number of tokens selected.
    found: dict[Key, list[tuple[float, float]]] = {}
    for task in texts(prompts, asked.context, asked.texts):
        task = Task(task.context, task.said[: asked.said])
        for key, *pair in indexed(stored, task, exact(stored, task), sample):
            found.setdefault(key, []).append((pair[0], pair[1]))
        # The same steps. A quarter of the tokens before them joined the clusters of a prompt one by one.
        steps = range(asked.context, asked.context + asked.said - 1)
        text = told(model, task.context + task.said, 3 * asked.context // 4, steps)
        for made in (clustered(model, text), others(model, text)):
            for key, *pair in made:
                found.setdefault(key, []).append((float(pair[0]), float(pair[1])))
        write(asked.output, found, asked.model, asked.context)


if __name__ == "__main__":
    main()
