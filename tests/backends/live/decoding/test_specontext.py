"""SpeContext on a real model: one choice by the head for all layers, and KV that moves as the choice changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoding import roles_of
from small_decoding import SmallDecoding, exact_logits
from tiny import LIVE_DECODING, tiny

from kvferry.pipelines.run import run_scenario

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
# Of a layer of the small model: 2 sides, 2 heads, 16 numbers of 4 B.
TOKEN_BYTES = 2 * 2 * 16 * 4
HEADS, LAYERS, WIDTH = 2, 3, 16


def decoding(model: Any, folder: Path, *, near: float = 0, output: int = 8, **policies: Any) -> SmallDecoding:
    """Two sequences of 40 tokens; the processor's memory has room for the KV of so many layers of 44 tokens."""
    roles = roles_of("specontext", **policies)
    sizes = {"context": 40, "batch": 2, "output": output}
    return SmallDecoding(model, folder, roles, **sizes, free_bytes=near * 44 * TOKEN_BYTES)


@torch.no_grad()
def test_the_heads_attention_chooses_for_all_layers(model: Any, tmp_path: Path) -> None:
    from kvferry.model.decoder import Decoder
    from kvferry.model.retrieval_head import random_head

    run = decoding(model, tmp_path, selected_tokens=12)
    answers = run.run()
    assert run.runner.choosing == 1
    assert len(run.runner.chosen) == 7
    head = random_head(model, seed=0)
    for n, (ids, answer) in enumerate(zip(run.ids, answers, strict=True)):
        said = torch.tensor([ids + answer])
        rotary = Decoder(model).rotary(said.shape[1])
        queries, keys = head.projected(head.inputs(said, said.shape[1]), rotary)
        for step, chosen in enumerate(run.runner.chosen):
            by_kv_head = queries[0, :, 40 + step].unflatten(0, (HEADS, -1))
            shares = (by_kv_head @ keys[0, :, : 40 + step].mT * WIDTH**-0.5).softmax(-1).amax(1)
            assert chosen.ids.shape == (2, HEADS, 12)
            for best, ours in zip(shares.topk(12, -1).indices, torch.from_numpy(chosen.ids[n]), strict=True):
                assert set(best.tolist()) == set(ours.tolist())


@pytest.mark.parametrize("residency", ["elastic", "none"])
@pytest.mark.parametrize("placement", ["device", "host", "storage", "progressive"])
def test_at_full_budget_it_is_full_attention(model: Any, tmp_path: Path, placement: str, residency: str) -> None:
    where: Any = placement
    if placement == "progressive":
        where = {"name": placement, "host": f"{2 * 44 * TOKEN_BYTES} B"}
    run = decoding(model, tmp_path, near=2, placement=where, residency=residency, selected_tokens=1000)
    answers = run.run()
    apart = torch.stack(run.logits) - exact_logits(model, run.ids, answers)
    assert apart.abs().max() < 1e-4 * torch.stack(run.logits).std()


@pytest.mark.parametrize("placement", ["host", "storage", "progressive"])
def test_elastic_loading_moves_the_difference_of_two_choices(model: Any, tmp_path: Path, placement: str) -> None:
    """And says what a full reload says."""
    runs = {}
    for residency in ("elastic", "none"):
        folder = tmp_path / residency
        folder.mkdir()
        near = 2.2 if placement == "progressive" else 0
        runs[residency] = decoding(
            model, folder, near=near, placement=placement, residency=residency, selected_tokens=12, output=10
        )
    answers = {residency: run.run() for residency, run in runs.items()}
    assert answers["elastic"] == answers["none"]
    elastic, reload = (runs[residency].flow.record for residency in ("elastic", "none"))
    if placement != "progressive":
        rows = [one.ids.reshape(-1, one.ids.shape[-1]) for one in runs["elastic"].runner.chosen]
        first = rows[0].size
        differ = sum(
            len(np.setdiff1d(now, before)) for pair in zip(rows[1:], rows, strict=False) for now, before in zip(*pair)
        )
        assert elastic.brought_entries == LAYERS * (first + differ)
        assert reload.brought_entries == LAYERS * 9 * first
    assert 0 < elastic.brought_entries < reload.brought_entries


# A difference between the two largest logits up to which bfloat16 may tell them apart either way: logits lie within 32,
# where its steps are 1/8, and sums in another order end a step or two apart.
TOLERANCE = 0.25


def test_at_full_budget_a_trained_model_says_what_it_says_in_memory() -> None:
    """Layers move from the processor's memory to the host's and to storage as it decodes; a token may differ from the
    run with all KV in memory only where the two best logits lie closer than the tolerance, and what follows it then."""
    from kvferry.model.folder import BUNDLED
    from kvferry.model.models import load_model
    from kvferry.model.prompts import Prompts

    def answers(resources: set[str], **changes: Any) -> list[list[int]]:
        wanted = {**LIVE_DECODING, "model": "byte-small", "live": {"paced": False}, "policies": {}, **changes}
        run = run_scenario(tiny(wanted, workload={"kind": "decode", "context": 300, "batch": 2, "output": 40}))
        assert run.outcome == "done"
        assert {span.resource for span in run.spans} == {"cpu", *resources}
        return [run.measured["answers"][str(n)] for n in range(2)]

    memory = {"unified": False, "capacity_bytes": "8 GB", "bytes_per_s": "10 GB/s", "copy_bytes_per_s": "1 GB/s"}
    device = {"extends": "laptop-cpu", "storage": "nvme", "memory": {**memory, "host_capacity_bytes": "8 GB"}}
    # Slots for all tokens save no memory, so that it is said when layers move.
    leaving = [305, 312, 320, 328, 336, 400, 400, 400]
    placement = {"name": "progressive", "host": "500 KiB", "thresholds": leaving}
    away = answers(
        {"copy", "storage"},
        system="specontext",
        device=device,
        policies={"selected_tokens": 340, "placement": placement},
        budget={"kv": "6 MiB"},
    )
    there = answers(set(), system="vllm", budget={"kv": "64 MiB"})
    model, prompts = load_model("byte-small"), Prompts(BUNDLED / "byte-small", 260, None, 0)
    for n, (ours, theirs) in enumerate(zip(away, there, strict=True)):
        context = prompts.tokens(n, 300, 0)[0]
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *theirs]])).logits[0, 299:-1].float()
        best = logits.topk(2).values
        differ = [at for at, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
        assert not differ or best[differ[0], 0] - best[differ[0], 1] <= TOLERANCE
