"""What selecting groups costs in quality, measured: python studies/selection_quality.py [--output FOLDER]

A real model decodes with its KV in a file, through the pipeline that scenarios run, made to say a text's
own continuation, or questions about needles in it with their answers. Its next-token distributions are compared with
those of full attention over the same tokens. Prefill is always with full attention. Columns:

agree      share of steps with the same most likely next token
KL         mean divergence of the distribution from full attention's, in nats
perplexity of the text, over that of full attention (1: nothing lost)
recall     share of the groups with most true attention mass, in the mean over layers and steps, that were selected
mass       share of attention mass on what was attended
needles    answers of which every byte was most likely
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.build import format_of
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.indexes.low_rank_keys import LowRankKeys, low_rank_adapters
from kvferry.backends.live.decoding.layers import Layers
from kvferry.backends.live.decoding.written import source
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.disk.direct_storage import Storage
from kvferry.model.decoder import Decoder
from kvferry.model.models import load_model, spec_of
from kvferry.model.prompts import Prompts
from kvferry.model.whole_prefill import PrefilledLayer, prefill_layer
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.upkeep import RollingGroups

NEEDLES, SAID = 8, 128
FACT, QUESTION = "The secret code of {} is {}.\n", "The secret code of {} is "


@dataclass(frozen=True)
class Task:
    """A context, what is said after it, and which of these tokens answer needles: [begin, end) each."""

    context: list[int]
    said: list[int]
    answers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Exact:
    """Full attention over a Task: `logits` float[said, vocabulary] before each said token, attention `mass`
    float[layers, KV heads, steps, tokens] of the steps that decode, and what the context leaves in each layer."""

    logits: torch.Tensor
    mass: torch.Tensor
    prefilled: tuple[PrefilledLayer, ...]


@dataclass(frozen=True)
class Way:
    name: str
    roles: Roles


@torch.no_grad()
def exact(model: PreTrainedModel, task: Task) -> Exact:
    decoder = Decoder(model)
    ids = torch.tensor([task.context + task.said], device=decoder.device)
    n, begin = ids.shape[1], len(task.context)
    rotary, hidden = decoder.rotary(n), decoder.embed(ids)
    steps = torch.arange(begin, n - 1)
    masses, left = [], []
    for layer in range(decoder.layers):
        hidden, queries, keys, values = prefill_layer(decoder, layer, hidden, rotary)
        of_context = (side[:, :, :begin].clone() for side in (queries, keys, values))
        left.append(PrefilledLayer(hidden[:, :begin].clone(), *of_context))
        masses.append(attention_mass(decoder, queries[:, :, steps], keys, steps))
    return Exact(decoder.logits(hidden[0, begin - 1 : -1]).float(), torch.stack(masses), tuple(left))


def attention_mass(decoder: Decoder, queries: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """float[KV heads, steps, tokens]: what the query heads of a KV head give to each token, from queries [1, query
    heads, steps, head_dim] of the tokens `steps`."""
    by_kv_head = queries[0].unflatten(0, (decoder.heads, -1)).float() * decoder.head_dim**-0.5
    later = torch.arange(keys.shape[2]) > steps[:, None]
    scores = by_kv_head @ keys[0].float()[:, None].mT
    return scores.masked_fill(later, -torch.inf).softmax(-1).sum(1)


def decoded(
    plan: DecodePlan, model: PreTrainedModel, task: Task, true: Exact, index: Index, folder: Path
) -> tuple[torch.Tensor, Layers, LockStepDecode]:
    """Logits before each said token, the runner with what was chosen, and the pipeline."""
    logits: list[torch.Tensor] = []
    runner = Layers(
        model,
        [task.context],
        format_of(plan, model.dtype),
        known=true.prefilled.__getitem__,
        output=len(task.said),
        slots=plan.staying.slots,
        index=index,
        rebuilt_rank=plan.keys.rebuilt_rank,
        follow=[task.said],
        listen=logits.append,
    )
    path = folder / "kv.bin"
    with (
        Storage.create(path, plan.file_bytes, direct=False) as storage,
        LiveMachine("here", runner, capacity_bytes=1e12, storage=storage, source=source) as machine,
    ):
        flow = LockStepDecode(machine, plan)
        machine.env.run(until=machine.env.process(flow.run(len(task.said))))
    path.unlink()
    return torch.cat(logits).float(), runner, flow


def decoded_by(
    way: Way, model: PreTrainedModel, task: Task, true: Exact, adapters: torch.Tensor, folder: Path
) -> tuple[torch.Tensor, Layers, LockStepDecode]:
    lengths = {"context": len(task.context), "output": len(task.said)}
    plan = plan_of(way.roles, spec_of(model), sequences=1, **lengths, budget_bytes=1e12)
    assert plan.keys.index is not None
    room_tokens = plan.layout.blocks * plan.choice.group_tokens
    index = LowRankKeys(adapters[..., : plan.keys.rank], plan.keys.index, sequences=1, room_tokens=room_tokens)
    return decoded(plan, model, task, true, index, folder)


def compared(task: Task, true: Exact, way: Way, found: tuple[torch.Tensor, Layers, LockStepDecode]) -> dict[str, float]:
    logits, runner, flow = found
    chosen = [one.ids[0, 0] for one in runner.chosen]
    group, layers = flow.plan.choice.group_tokens, flow.plan.model.layers
    said = torch.tensor(task.said)
    # The first token comes from prefill.
    own, full = logits[1:].log_softmax(-1), true.logits[1:].log_softmax(-1)
    steps = torch.arange(len(own))
    recall, mass = [], []
    for n, ids in enumerate(chosen):
        step, layer = divmod(n, layers)
        by_token = true.mass[layer, :, step].sum(0)
        known = len(task.context) + step + 1
        stored = (known - 1) // group
        by_group = by_token[: stored * group].unflatten(0, (stored, group)).sum(-1)
        best = by_group.topk(len(ids)).indices.numpy()
        recall.append(np.isin(best, ids).mean())
        # Without a rolling buffer, attention sees the newest token alone.
        rolling = way.roles.upkeep != RollingGroups(rolling=False)
        recent = by_token[stored * group : known] if rolling else by_token[known - 1 : known]
        mass.append(float((by_group[torch.from_numpy(ids).long()].sum() + recent.sum()) / by_token[:known].sum()))
    right = own.argmax(-1) == said[1:]
    needles = [bool(right[begin - 1 : end - 1].all()) for begin, end in task.answers]
    nats = [-each[steps, said[1:]].mean() for each in (own, full)]
    figures = {
        "agree": float((own.argmax(-1) == full.argmax(-1)).float().mean()),
        "KL": float((full.exp() * (full - own)).sum(-1).mean()),
        "perplexity": float((nats[0] - nats[1]).exp()),
        "recall": float(np.mean(recall)),
        "mass": float(np.mean(mass)),
    }
    if flow.plan.staying.slots:
        figures["reuse"] = flow.record.blocks_reused / flow.record.blocks_wanted
    return figures | ({"needles": float(np.mean(needles))} if needles else {})


def texts(prompts: Prompts, context: int, how_many: int) -> Iterator[Task]:
    for n in range(how_many):
        ids, rest = prompts.tokens(n, context, SAID)
        yield Task(list(ids), list(rest))


def needles(prompts: Prompts, context: int, how_many: int) -> Iterator[Task]:
    """Facts strewn evenly into text, asked for in another order."""
    for n in range(how_many):
        random = np.random.default_rng([7, n])
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        facts = [("".join(random.choice(letters, 7)), str(random.integers(10**5, 10**6))) for _ in range(NEEDLES)]
        sentences = [FACT.format(*fact).encode() for fact in facts]
        text = bytes(prompts.tokens(100 + n, context, 0)[0])
        room = context - sum(map(len, sentences))
        cuts = np.linspace(0, room, NEEDLES + 2).astype(int)
        parts = [text[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
        whole = b"".join(part + fact for part, fact in zip(parts, [*sentences, b""], strict=True))
        said, answers = b"\n", []
        for asked in random.permutation(NEEDLES):
            key, value = facts[asked]
            said += QUESTION.format(key).encode()
            answers.append((len(said), len(said) + len(value)))
            said += value.encode() + b".\n"
        yield Task(list(whole), list(said), tuple(answers))


BASE = {"group_tokens": 8, "selected_tokens": 400, "compression": 8, "reuse": False}


def changed(name: str, **changes: Any) -> Way:
    return Way(name, DECODE_SYSTEMS["kvswap"].with_policies({**BASE, **changes}).roles)


def ways(context: int) -> list[Way]:
    return [
        changed("all groups", selected_tokens=2 * context, compression=1),
        changed("base"),
        changed("base, softmax by head", scores="by_head"),
        *(changed(f"G={g}", group_tokens=g) for g in (1, 2, 4, 16, 32)),
        *(changed(f"sigma={s}", compression=s) for s in (1, 2, 4, 16, 32)),
        *(changed(f"MG={m}", selected_tokens=m) for m in (64, 128, 200, 800, 1600)),
        *(changed(f"C={c}", reuse=True, slots=c) for c in (50, 100, 200)),
        *(changed(f"G={g}, no rolling buffer", group_tokens=g, rolling=False) for g in (2, 4, 8, 12)),
        changed("G=12", group_tokens=12),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="byte-large", help="as live.weights; reads bytes")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--ways", nargs="+", help="only those whose name begins with one of these")
    parser.add_argument("--output", type=Path, help="folder for quality.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(arguments.model, arguments.dtype)
    prompts = Prompts(Path(model.config.name_or_path), model.config.vocab_size, None, 0)
    sample, _ = prompts.tokens(1000, min(arguments.context, 8192), 0)
    adapters = low_rank_adapters(
        Decoder(model), torch.tensor([sample]), spec_of(model).kv_heads * spec_of(model).head_dim
    )
    tasks = [
        *texts(prompts, arguments.context, arguments.texts),
        *needles(prompts, arguments.context, arguments.texts),
    ]
    true = [exact(model, task) for task in tasks]
    full = [
        (each.logits[begin:end].argmax(-1) == torch.tensor(task.said[begin:end])).all().item()
        for task, each in zip(tasks, true, strict=True)
        for begin, end in task.answers
    ]
    print(
        f"{arguments.model}, {arguments.context} tokens;"
        f" full attention finds {np.mean(full):.0%} of {len(full)} needles"
    )
    rows: dict[str, Any] = {"full attention": {"needles": float(np.mean(full))}}
    columns = ("agree", "KL", "perplexity", "recall", "mass", "needles", "reuse")
    print("| |", " | ".join(columns), "|\n|---|", "---|" * len(columns), sep="")
    with TemporaryDirectory() as folder:
        for way in ways(arguments.context):
            if arguments.ways and not way.name.startswith(tuple(arguments.ways)):
                continue
            began_s = perf_counter()
            each = [
                (task, compared(task, one, way, decoded_by(way, model, task, one, adapters, Path(folder))))
                for task, one in zip(tasks, true, strict=True)
            ]
            # Text tells of distributions, needles of retrieval.
            row = {
                key: float(
                    np.mean([f[key] for task, f in each if key in f and bool(task.answers) == (key == "needles")])
                )
                for key in columns
                if any(key in f for _, f in each)
            }
            rows[way.name] = row
            print(
                f"| {way.name} |",
                " | ".join(f"{row[key]:.3f}" if key in row else "" for key in columns),
                "|",
                flush=True,
            )
            print(f"{way.name}: {perf_counter() - began_s:.0f} s", file=sys.stderr)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        circumstances = {"model": arguments.model, "dtype": arguments.dtype, "context": arguments.context}
        content = {**circumstances, "texts": arguments.texts, "ways": rows}
        (arguments.output / "quality.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
