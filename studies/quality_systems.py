"""What each system's choice costs, through the pipeline that scenarios run.

A model decodes, its KV in a file, and is given what to say: a text's own continuation, or questions about needles in it
with their answers. Every system selects as many tokens, and with --share has as much memory to choose them with. Then
KVSwap's parameters, one by one. Prefill is always with full attention. Columns:

agree      share of steps with the same most likely next token as full attention's
KL         mean divergence of the next-token distribution from full attention's, in nats
perplexity of the text, over that of full attention (1: nothing lost)
hits       of the k tokens with most true attention mass in a KV head, the share that was selected, where k tokens are;
           in the mean over heads, layers and steps
mass       share of a KV head's true attention mass on what it attended
needles    answers whose every byte was most likely
reuse      share of the selected KV blocks that were in memory, where there is a reuse buffer

"chance" selects tokens at random. Quest is its index alone: pages of 16 tokens, every KV head for itself.
With --share, keys other than KVSwap's are as narrow as that memory asks; without it they have their published width.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from full_attention import heading, means, show
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.build import format_of, sample_of
from kvferry.backends.live.decoding.indexes.index import BlockIndex, Index
from kvferry.backends.live.decoding.indexes.table import index_maker
from kvferry.backends.live.decoding.layers import Layers
from kvferry.backends.live.decoding.written import source
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.quality.attended_tokens import AttendedTokens
from kvferry.backends.live.quality.full_attention import Exact, exact
from kvferry.backends.live.quality.measured import Measured
from kvferry.backends.live.quality.tasks import SAID, Task, needles, texts
from kvferry.disk.direct_storage import Storage
from kvferry.model.decoder import Decoder
from kvferry.model.models import spec_of
from kvferry.model.prompts import Prompts
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import NoRoom, plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.policies.decode.index import IndexSpec

# Columns that are a run's metrics, too.
METRICS = {
    "agree": "agreement_share",
    "KL": "kl_nats",
    "hits": "recall_share",
    "mass": "attention_mass",
    "perplexity": "perplexity_over_full",
    "needles": "right_share",
}
COLUMNS = ("tokens", "numbers", "agree", "KL", "perplexity", "hits", "mass", "needles", "reuse")


class Chance(BlockIndex):
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


def _kvswap(**changed: Any) -> Way:
    return Way("kvswap", {"group_tokens": 8, "compression": 8.0, "reuse": False, **changed})


def ways(context: int, *, narrow: bool = False) -> dict[str, Way]:
    """By name; the first of KVSwap's parameters select all there is. `narrow`: what compares systems at equal memory,
    keys of a published width as narrow as the budget asks."""
    fit = {"compression": "fit"} if narrow else {}
    return {
        "kvswap": _kvswap(),
        **{name: Way(name, fit) for name in ("infinigen", "infinigen-star", "loki", "shadowkv")},
        # Another index stands in for InfiniGen's, whose width would need room all the same.
        "quest": Way("infinigen", {"group_tokens": 16, "compression": "fit"}, index="page-bounds"),
        "chance": Way("infinigen", {"compression": "fit"}, index="chance"),
        "all groups": _kvswap(selected_tokens=2 * context, compression=1),
        "softmax by head": _kvswap(scores="by_head"),
        **{f"G={g}": _kvswap(group_tokens=g) for g in (1, 2, 4, 12, 16, 32)},
        **{f"sigma={s}": _kvswap(compression=s) for s in (1, 2, 4, 16, 32)},
        **{f"MG={m}": _kvswap(selected_tokens=m) for m in (64, 128, 200, 800, 1600)},
        **{f"C={c}": _kvswap(reuse=True, slots=c) for c in (50, 100, 200)},
        **{f"no rolling buffer, G={g}": _kvswap(group_tokens=g, rolling=False) for g in (2, 4, 8, 12)},
    }


def decoded(
    plan: DecodePlan, model: PreTrainedModel, task: Task, true: Exact, index: Index, folder: Path
) -> tuple[torch.Tensor, AttendedTokens, Layers, LockStepDecode]:
    """Logits before each said token, what was attended to, the runner with what was chosen, and the pipeline."""
    logits: list[torch.Tensor] = []
    format = format_of(plan, model.dtype)
    tokens = AttendedTokens(format, context=len(task.context))
    runner = Layers(
        model,
        [task.context],
        format,
        known=true.prefilled.__getitem__,
        output=len(task.said),
        slots=plan.staying.slots,
        index=index,
        rebuilt_rank=plan.keys.rebuilt_rank,
        follow=[task.said],
        listen=lambda some, of: logits.append(some),
        attended=tokens,
    )
    path = folder / "kv.bin"
    with (
        Storage.create(path, plan.file_bytes, direct=False) as storage,
        LiveMachine("here", runner, capacity_bytes=1e12, storage=storage, source=source) as machine,
    ):
        flow = LockStepDecode(machine, plan)
        machine.env.run(until=machine.env.process(flow.run(len(task.said))))
    path.unlink()
    return torch.cat(logits).float(), tokens, runner, flow


def compared(
    model: PreTrainedModel, task: Task, true: Exact, way: Way, asked: Namespace, selected: int, sample: torch.Tensor
) -> dict[str, float]:
    of_model, decoder = spec_of(model), Decoder(model)
    roles = DECODE_SYSTEMS[way.system].with_policies({"selected_tokens": selected, **way.policies}).roles
    budget = 1e12 if asked.share is None else asked.share * of_model.kv_full_bytes(len(task.context))
    lengths = {"context": len(task.context), "output": len(task.said)}
    plan = plan_of(roles, of_model, sequences=1, **lengths, budget_bytes=budget)
    room_tokens = plan.layout.blocks * plan.choice.group_tokens
    spec = plan.keys.index
    if way.index is not None:
        rank = 0 if way.index == "chance" else 2 * plan.model.key_width
        spec = IndexSpec(kind=way.index, heads=plan.choice.heads, rank=rank, block_tokens=plan.choice.group_tokens)
    assert spec is not None
    if spec.kind == "chance":
        index: Index = Chance(spec, layers=decoder.layers, head_dim=decoder.head_dim, room_tokens=room_tokens)
    else:
        index = index_maker(spec.kind)(decoder, sample, spec, sequences=1, room_tokens=room_tokens)
    with TemporaryDirectory() as folder:
        logits, tokens, runner, flow = decoded(plan, model, task, true, index, Path(folder))
    measured = attended(tokens, true)
    measured.add_steps(task, logits[1:].log_softmax(-1), true.logits[1:].log_softmax(-1))
    of_run = measured.figures()
    figures = {key: of_run[metric] for key, metric in METRICS.items() if metric in of_run} | {
        "tokens": float(runner.chosen[0].ids.shape[-1] * plan.choice.group_tokens),
        "numbers": float(index.spec.rank),
        "memory": float(runner.metadata_bytes),
    }
    if plan.staying.slots:
        figures["reuse"] = flow.record.blocks_reused / flow.record.blocks_wanted
    return figures


def attended(tokens: AttendedTokens, true: Exact) -> Measured:
    """Returns hits and mass. What is attended besides, as of a rolling buffer, counts as mass alone."""
    measured = Measured()
    for layer, mass in enumerate(true.mass):
        measured.add_attended(*tokens.hits_and_mass(layer, 0, mass))
    return measured


def found(likeliest: torch.Tensor, task: Task) -> float:
    """Returns the share of answers whose every token was likeliest, of all tokens but the first."""
    return float(np.mean(task.right(np.array([task.said[0], *likeliest.tolist()]))))


def measure(asked: Namespace, model: PreTrainedModel, prompts: Prompts) -> dict[str, Any]:
    read_on, apart = (asked.said, asked.context + max(asked.said, SAID)) if asked.texts else (0, None)
    sample = sample_of(prompts, max(asked.texts, 1), asked.context, read_on, apart)
    tasks = [
        *texts(prompts, asked.context, asked.texts, asked.said),
        *needles(prompts, asked.context, asked.needles),
    ]
    true = [exact(model, one) for one in tasks]
    known = [found(each.logits[1:].argmax(-1), one) for one, each in zip(tasks, true, strict=True) if one.answers]
    print(f"{asked.context} tokens; full attention finds {np.mean(known or [0]):.0%} of the needles")
    heading(COLUMNS)
    rows: dict[str, dict[str, Any]] = {"full attention": {"needles": float(np.mean(known or [0]))}}
    for selected in asked.selected:
        for name, way in ways(asked.context, narrow=asked.share is not None).items():
            if asked.ways and not name.startswith(tuple(asked.ways)):
                continue
            began_s = perf_counter()
            try:
                each = [compared(model, *pair, way, asked, selected, sample) for pair in zip(tasks, true, strict=True)]
            except NoRoom as why:
                print(f"| {name} | does not fit: {why} |", flush=True)
                rows[f"{name}, {selected} tokens"] = {"does not fit": str(why)}
                continue
            # Text tells of distributions, needles of retrieval.
            row = means((of for of in each if "needles" not in of), (*COLUMNS, "memory"))
            row |= means(each, ("needles",))
            rows[f"{name}, {selected} tokens"] = row
            show(name, row, COLUMNS)
            print(f"{name}: {perf_counter() - began_s:.0f} s", file=sys.stderr)
    return {"ways": rows}
