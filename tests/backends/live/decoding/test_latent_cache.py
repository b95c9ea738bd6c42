"""A model with a latent cache (MLA) decodes for real, its cache in the processor's memory, the host's and a file."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoding import roles_of
from small_decoding import SmallDecoding, exact_logits, small_latent_model
from tiny import LIVE_DECODING, LIVE_LATENT_MODEL, tiny

from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
# Of a layer: 24 + 8 numbers of 4 B.
TOKEN_BYTES, LAYERS = 32 * 4, 3


@pytest.fixture(scope="module")
def model() -> Any:
    return small_latent_model()


def decoding(model: Any, folder: Path, system: str = "specontext", **policies: Any) -> SmallDecoding:
    """Two sequences of 40 tokens; the processor's memory has room for two layers of 44 tokens."""
    roles = roles_of(system, **policies)
    return SmallDecoding(model, folder, roles, context=40, batch=2, output=8, free_bytes=2 * 44 * TOKEN_BYTES)


@pytest.mark.parametrize("residency", ["elastic", "none"])
@pytest.mark.parametrize("placement", ["device", "host", "storage", "progressive"])
def test_at_full_budget_it_is_full_attention(model: Any, tmp_path: Path, placement: str, residency: str) -> None:
    where: Any = placement
    if placement == "progressive":
        where = {"name": placement, "host": f"{2 * 44 * TOKEN_BYTES} B"}
    run = decoding(model, tmp_path, placement=where, residency=residency, selected_tokens=1000)
    answers = run.run()
    exact = exact_logits(model, run.ids, answers)
    assert (torch.stack(run.logits) - exact).abs().max() < 1e-4 * exact.std()
    assert answers == exact.argmax(-1).T.tolist()


@pytest.mark.parametrize("system", ["quest", "flexgen"])
def test_other_systems_take_it_as_one_wide_head(model: Any, tmp_path: Path, system: str) -> None:
    run = decoding(model, tmp_path, system, **({"selected_tokens": 1000} if system == "quest" else {}))
    answers = run.run()
    exact = exact_logits(model, run.ids, answers)
    assert (torch.stack(run.logits) - exact).abs().max() < 1e-4 * exact.std()


def test_all_heads_choose_together_and_the_difference_moves(model: Any, tmp_path: Path) -> None:
    run = decoding(model, tmp_path, placement="storage", selected_tokens=12)
    run.run()
    chosen = [one.ids for one in run.runner.chosen]
    assert {ids.shape for ids in chosen} == {(2, 1, 12)}
    moved = chosen[0].size
    for before, now in itertools.pairwise(chosen):
        moved += sum(len(np.setdiff1d(now[n], before[n])) for n in range(2))
    assert run.flow.record.brought_entries == LAYERS * moved
    assert run.plan.layout.block_bytes == TOKEN_BYTES


def test_a_scenario_says_what_it_says_in_memory(model: Any, tmp_path: Path) -> None:
    from kvferry.model.retrieval_head import random_head

    model.save_pretrained(tmp_path)
    random_head(model, seed=0).save(tmp_path)

    def answers(**changes: Any) -> tuple[list[list[int]], set[str]]:
        live = {"weights": str(tmp_path), "paced": False}
        wanted = {**LIVE_DECODING, "model": LIVE_LATENT_MODEL, "live": live, "policies": {}, **changes}
        run = run_scenario(tiny(wanted))
        assert run.outcome == "done"
        return [run.measured["answers"][str(n)] for n in range(2)], {span.resource for span in run.spans}

    budget = {"budget": {"kv": "10 MiB"}}
    there, resources = answers(system="vllm", **budget)
    assert resources == {"cpu"}
    away, resources = answers(system="specontext", policies={"selected_tokens": 164, "placement": "storage"}, **budget)
    assert resources == {"cpu", "storage"}
    assert away == there


def test_a_kept_file_is_of_keys_and_values(tmp_path: Path) -> None:
    live = {"weights": "random", "family": "deepseek_v3", "kv_file": str(tmp_path / "kv.bin")}
    wanted = {**LIVE_DECODING, "model": LIVE_LATENT_MODEL, "live": live, "system": "specontext"}
    policies = {"selected_tokens": 100, "placement": "storage"}
    with pytest.raises(InputError, match="live.kv_file: .* the model's cache is latent"):
        run_scenario(tiny({**wanted, "policies": policies}))
