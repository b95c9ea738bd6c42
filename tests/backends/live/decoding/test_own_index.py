"""Indexes and selectors of a user's own over a real model: the same files as in the modelled world."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin import HITTERS, INFLLM, RANDOM, none_left, written  # noqa: F401
from tiny import LIVE_DECODING, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.plugins import use
from kvferry.pipelines.run import Run, run_scenario
from kvferry.policies.decode.index import IndexSpec

torch = pytest.importorskip("torch")
SLOTS = 20


pytestmark = pytest.mark.usefixtures("here")


def both(selector: dict[str, Any], **more: Any) -> tuple[Run, dict[str, float], dict[str, float]]:
    """The live run; its figures, and those of the modelled world given what was selected."""
    policies = {"selector": {"selected_tokens": 32, **selector}, "residency": {"name": "reuse", "slots": SLOTS}}
    whole = {"policies": {**policies, "group_tokens": 4, "compression": None, "selected_tokens": None}, **more}
    wanted = tiny(LIVE_DECODING, system="quest", **whole)
    live = run_scenario(wanted)
    assert live.outcome == "done", live.why
    modelled = run_scenario(wanted.model_copy(update={"backend": "sim"}), inputs=live.inputs)
    return live, metrics_for(wanted, live), metrics_for(wanted, modelled)


@pytest.mark.parametrize(("text", "name"), [(RANDOM, "random"), (HITTERS, "hitters"), (INFLLM, "infllm")])
def test_one_file_decides_in_both_worlds(text: str, name: str) -> None:
    use(written(text))
    _, live, modelled = both({"name": name})
    for figure in ("reuse_rate", "read_bytes", "tokens_decoded"):
        assert live[figure] == modelled[figure]
    # Of some 40 blocks 20 lie in a row's slots: the rate of a random choice; what attention goes to stays.
    if name == "random":
        assert live["reuse_rate"] == pytest.approx(SLOTS / 40, abs=0.12)
    if name == "hitters":
        assert live["reuse_rate"] > 0.7


def test_an_index_over_arrays_scores_as_one_over_tensors(tmp_path: Path) -> None:
    """All keys, of blocks of one token: as landmarks of such blocks, for both ways to choose together."""
    from tiny import LIVE_MODEL

    from kvferry.backends.live.decoding.indexes.array_index import ArrayIndex
    from kvferry.backends.live.decoding.indexes.block_vectors import Landmarks
    from kvferry.model.decoder import Decoder
    from kvferry.model.models import random_model
    from kvferry.specs.model import ModelSpec

    decoder = Decoder(random_model("qwen3", ModelSpec.model_validate(LIVE_MODEL), seed=0, spread=0.2))
    for heads, scores in ((1, "summed"), (decoder.heads, "best_head"), (1, "by_head")):
        spec = IndexSpec(kind="keys", heads=heads, rank=8, block_tokens=1, scores=scores)  # type: ignore[arg-type]
        over_arrays, over_tensors = (
            kind.made(decoder, torch.zeros(1, 8), spec, sequences=2, room_tokens=50) for kind in (ArrayIndex, Landmarks)
        )
        draw = torch.Generator().manual_seed(3)
        queries = torch.randn(2, decoder.model.config.num_attention_heads, 1, decoder.head_dim, generator=draw)
        for layer in range(decoder.layers):
            for n in (30, 10):
                keys = torch.randn(2, decoder.heads, n, decoder.head_dim, generator=draw)
                for index in (over_arrays, over_tensors):
                    index.append(layer, keys)
            found = [index.scores(layer, queries, heads) for index in (over_arrays, over_tensors)]
            assert found[0].shape == (2, heads, 40)
            np.testing.assert_allclose(*found, rtol=2e-5, atol=1e-5)
