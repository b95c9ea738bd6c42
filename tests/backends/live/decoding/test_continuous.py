"""Requests that come and go on a real model: each says what it says when it is alone."""

from pathlib import Path
from typing import Any

import pytest
from small_decoding import exact_logits
from tiny import LIVE_PLAIN, changed, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.run import run_scenario
from kvferry.traces.chance import Source, generator

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
LENGTHS = ((60, 12), (33, 20), (30, 20), (150, 3), (5, 30))
# Of the logits' standard deviation: where the best two are closer, sums in another order may choose the other.
TOLERANCE = 1e-3


@pytest.mark.parametrize(("pages", "arrivals"), [(10, None), (100, {"every": "10 ms"})])
def test_every_request_says_what_it_says_alone(
    model: Any, tmp_path: Path, pages: int, arrivals: dict[str, str] | None
) -> None:
    model.save_pretrained(tmp_path)
    lengths = [{"context": context, "output": output} for context, output in LENGTHS]
    # Three layers of two heads with keys and values of 16 numbers of 4 B.
    pool_bytes = pages * 16 * 3 * 2 * 2 * 16 * 4
    wanted = tiny(
        changed(LIVE_PLAIN, system="vllm", live={"weights": str(tmp_path)}),
        workload={"batch": 3, "lengths": lengths, "arrivals": arrivals},
        budget={"kv": None, "in_memory_kv": f"{pool_bytes} B"},
    )
    run = run_scenario(wanted)
    assert run.outcome == "done", run.why
    figures = metrics_for(wanted, run)
    # 10 pages hold the longest request, and the first three at the start, but not as they grow.
    assert figures.get("preemptions", 0) == (1 if pages == 10 else 0)
    assert figures["kv_buffer_bytes"] <= pool_bytes
    assert run.decoded is not None
    assert max(n for n, _ in run.decoded.steps) > 1
    for n, (context, output) in enumerate(LENGTHS):
        prompt = generator(Source.PROMPTS, wanted.seed, n).integers(0, 256, context).tolist()
        said = run.measured["answers"][str(n)]
        assert len(said) == output
        logits = exact_logits(model, [prompt], [said])[:, 0]
        margin = logits.amax(-1) - logits[torch.arange(output), torch.tensor(said)]
        assert bool((margin <= TOLERANCE * logits.std()).all())
