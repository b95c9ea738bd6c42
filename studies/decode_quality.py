"""What each system's choice costs in quality, measured: python studies/decode_quality.py [--output FOLDER]

The bundled model decodes through the pipeline that scenarios run, its KV in a file, and is given what to say: a text's
own continuation, or questions about needles in it with their answers. Every system selects as many tokens, and has as
much memory to choose them with. Columns:

agree      share of steps with the same most likely next token as full attention's
KL         mean divergence of the next-token distribution from full attention's, in nats
hits       of the k tokens with most true attention mass in a KV head, the share that was selected, where k tokens are;
           in the mean over heads, layers and steps
mass       share of a KV head's true attention mass on what it attended
needles    answers of which every byte was most likely

"chance" selects tokens at random. Quest is its index alone: pages of 16 tokens, every KV head for itself.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from selection_quality import Exact, Task, decoded, exact, needles, texts
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.indexes.table import index_maker
from kvferry.model.decoder import Decoder
from kvferry.model.prompts import Prompts
from kvferry.model.scenario_model import model_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.policies.decode.index import IndexSpec
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario


class Chance(Index):
    """Any KV block is as good as another."""

    n_bytes = 0

    def _keep(self, layer: int, block: int, keys: torch.Tensor) -> None:
        self._sequences = len(keys)

    def scores(self, layer: int, queries: torch.Tensor, heads: int) -> torch.Tensor:
        return torch.rand(self._sequences, heads, self.blocks(layer))


@dataclass(frozen=True)
class Way:
    """A system with some of its policies changed; `index` stands in for its own."""

    system: str
    policies: Mapping[str, Any] = field(default_factory=dict)
    index: str | None = None


WAYS = {
    "kvswap": Way("kvswap", {"group_tokens": 8, "compression": 8.0, "reuse": False}),
    "infinigen": Way("infinigen"),
    "infinigen-star": Way("infinigen-star"),
    "loki": Way("loki"),
    "shadowkv": Way("shadowkv"),
    "quest": Way("infinigen", {"group_tokens": 16}, index="page-bounds"),
    "chance": Way("infinigen", index="chance"),
}


def index_of(plan: Any, way: Way, decoder: Decoder, sample: torch.Tensor) -> Index:
    room_tokens = plan.layout.blocks * plan.choice.group_tokens
    if way.index == "chance":
        spec = IndexSpec(kind="chance", heads=plan.choice.heads, rank=0, block_tokens=plan.choice.group_tokens)
        return Chance(spec, layers=decoder.layers, head_dim=decoder.head_dim, room_tokens=room_tokens)
    spec = plan.keys.index
    if way.index is not None:
        spec = IndexSpec(
            kind=way.index,
            heads=plan.choice.heads,
            rank=2 * plan.model.key_width,
            block_tokens=plan.choice.group_tokens,
        )
    return index_maker(spec.kind)(decoder, sample, spec, sequences=1, room_tokens=room_tokens)


def compared(
    scenario: Scenario, model: PreTrainedModel, task: Task, true: Exact, way: Way, sample: torch.Tensor, folder: Path
) -> dict[str, float]:
    plan = plan_for(scenario, DECODE_SYSTEMS[way.system].with_policies({**way.policies, **scenario.policy_values}))
    index = index_of(plan, way, Decoder(model), sample)
    logits, runner, _ = decoded(plan, model, task, true, index, folder)
    hits, mass = attended(task, true, plan.choice.group_tokens, [one.ids for one in runner.chosen])
    # The first token comes from prefill.
    own, full = logits[1:].log_softmax(-1), true.logits[1:].log_softmax(-1)
    right = own.argmax(-1) == torch.tensor(task.said)[1:]
    found = [bool(right[begin - 1 : end - 1].all()) for begin, end in task.answers]
    figures = {
        "agree": float((own.argmax(-1) == full.argmax(-1)).float().mean()),
        "KL": float((full.exp() * (full - own)).sum(-1).mean()),
        "hits": hits,
        "mass": mass,
        "tokens": float(runner.chosen[0].ids.shape[-1] * plan.choice.group_tokens),
        "numbers": float(index.spec.rank),
        "memory": float(runner.metadata_bytes),
    }
    return figures | ({"needles": float(np.mean(found))} if found else {})


def attended(task: Task, true: Exact, group: int, chosen: list[np.ndarray]) -> tuple[float, float]:
    """Hits and mass. The rolling buffer's tokens are attended besides, and count as mass alone."""
    layers, heads = true.mass.shape[:2]
    hits, mass = [], []
    for n, ids in enumerate(chosen):
        step, layer = divmod(n, layers)
        known = len(task.context) + step + 1
        stored = (known - 1) // group * group
        tokens = (torch.from_numpy(ids[0]).long()[..., None] * group + torch.arange(group)).flatten(1)
        tokens = tokens.repeat_interleave(heads // len(tokens), 0)  # KV heads, selected tokens
        by_token = true.mass[layer, :, step, :known]
        selected = torch.zeros_like(by_token, dtype=torch.bool).scatter(1, tokens, True)
        best = by_token[:, :stored].topk(tokens.shape[1], dim=-1).indices
        hits.append(float(selected.gather(1, best).float().mean()))
        selected[:, stored:] = True
        mass.append(float(((by_token * selected).sum(1) / by_token.sum(1)).mean()))
    return float(np.mean(hits)), float(np.mean(mass))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="kvswap/live", help="whose model and device are used")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--selected", type=int, nargs="+", default=[128], help="tokens")
    parser.add_argument("--share", type=float, default=0.1, help="of the full cache, for choosing")
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--said", type=int, default=64, help="tokens after each text")
    parser.add_argument("--needles", type=int, default=1, help="contexts with needles")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--output", type=Path, help="folder for decode_quality.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, folder = model_of(load_scenario(arguments.scenario))
    prompts = Prompts(folder, model.config.vocab_size, None, 0)
    sample = torch.tensor([prompts.tokens(1000, arguments.context, 0)[0]])
    tasks = [
        Task(one.context, one.said[: arguments.said]) for one in texts(prompts, arguments.context, arguments.texts)
    ] + list(needles(prompts, arguments.context, arguments.needles))
    true = [exact(model, one) for one in tasks]
    full = [
        bool((each.logits[begin:end].argmax(-1) == torch.tensor(one.said[begin:end])).all())
        for one, each in zip(tasks, true, strict=True)
        for begin, end in one.answers
    ]
    print(f"{arguments.context} tokens; full attention finds {np.mean(full):.0%} of {len(full)} needles")
    columns = ("tokens", "numbers", "agree", "KL", "hits", "mass", "needles")
    print("| |", " | ".join(columns), "|\n|---|", "---|" * len(columns), sep="")
    rows: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as made:
        for selected in arguments.selected:
            for name in arguments.ways:
                began_s = perf_counter()
                each = []
                for one, known in zip(tasks, true, strict=True):
                    scenario = load_scenario(
                        arguments.scenario,
                        [
                            f"policies={{selected_tokens: {selected}}}",
                            f"workload.context={arguments.context}",
                            "workload.batch=1",
                            f"workload.output={len(one.said)}",
                            f"budget={{kv_share: {arguments.share}}}",
                        ],
                    )
                    each.append((one, compared(scenario, model, one, known, WAYS[name], sample, Path(made))))
                # Text tells of distributions, needles of retrieval.
                row = {
                    key: float(
                        np.mean([f[key] for one, f in each if key in f and bool(one.answers) == (key == "needles")])
                    )
                    for key in (*columns, "memory")
                    if any(key in f for _, f in each)
                }
                rows[f"{name}, {selected} tokens"] = row
                shown = (f"{row[key]:.{0 if key in ('tokens', 'numbers') else 3}f}" for key in columns if key in row)
                print(f"| {name} |", " | ".join(shown), "|", flush=True)
                print(f"{name}: {perf_counter() - began_s:.0f} s", file=sys.stderr)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        settings = {key: value for key, value in vars(arguments).items() if key != "output"}
        content = json.dumps({"settings": settings, "ways": rows}, indent=1)
        (arguments.output / "decode_quality.json").write_text(content)


if __name__ == "__main__":
    main()
