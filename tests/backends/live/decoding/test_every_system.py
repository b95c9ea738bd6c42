"""Every decode system, live: with all KV it is full attention, and with its own settings it runs."""

import time
from pathlib import Path
from typing import Any

import pytest
from small_decoding import exact_logits
from tiny import LIVE_PLAIN, changed, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.backends.live.engine.thread_work import LiveWork
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario
from kvferry.traces.chance import Source, generator

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SELECTING = ("kvswap", "infinigen", "infinigen-star", "infinigen-star-ru", "loki", "shadowkv")
CLUSTERS = ("dynakv", "pqcache", "clusterkv", "no-cluster")
READING_ALL = ("flexgen", "os-paging", "vllm")
# A block of 32 tokens is full and written behind ten tokens; clusters have more, so that some are cut.
CONTEXT, BATCH, OUTPUT, CLUSTERS_OUTPUT = 150, 2, 24, 40
# Of the logits' standard deviation: where the best two are further apart, another token is an error. Sums in another
# order differ by less than a tenth of this.
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def weights(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model as a folder of weights."""
    folder: Path = tmp_path_factory.mktemp("weights")
    model.save_pretrained(folder)
    return folder


def scenario(weights: Path, system: str, **changes: Any) -> Scenario:
    described = changed(LIVE_PLAIN, workload={"context": CONTEXT, "batch": BATCH, "output": OUTPUT})
    return tiny(changed(described, system=system, live={"weights": str(weights)}), **changes)


def wrong_tokens(model: Any, seed: int, answers: dict[str, list[int]]) -> int:
    """Tokens that full attention over the same past would not say, beyond the tolerance."""
    ids = [generator(Source.PROMPTS, seed, n).integers(0, 256, CONTEXT).tolist() for n in range(BATCH)]
    said = [answers[str(n)] for n in range(BATCH)]
    logits = exact_logits(model, ids, said)
    of_said = logits.gather(-1, torch.tensor(said).T[..., None])[..., 0]
    return int((logits.amax(-1) - of_said > TOLERANCE * logits.std()).sum())


@pytest.mark.parametrize("system", SELECTING)
def test_all_blocks_selected_are_full_attention(model: Any, weights: Path, system: str) -> None:
    """Blocks that are written while decoding among them; ShadowKV's keys are rebuilt at full rank."""
    wanted = scenario(
        weights, system, policies={"selected_tokens": CONTEXT + OUTPUT, "compression": 1}, budget={"kv": "90 MiB"}
    )
    run = run_scenario(wanted)
    assert run.outcome == "done"
    assert wrong_tokens(model, wanted.seed, run.measured["answers"]) == 0


@pytest.mark.parametrize("system", CLUSTERS)
def test_all_clusters_selected_are_full_attention(model: Any, weights: Path, system: str) -> None:
    """While keys join clusters, wait for them, cut them, or become new ones; slots keep what was read before."""
    policies: dict[str, Any] = {"selected_share": 1.0}
    if system != "no-cluster":
        policies["group_tokens"] = 8
    if system == "clusterkv":
        policies["window_tokens"] = 12
    workload = {"output": CLUSTERS_OUTPUT}
    wanted = scenario(weights, system, policies=policies, budget={"kv": "90 MiB"}, workload=workload)
    run = run_scenario(wanted)
    assert run.outcome == "done"
    assert wrong_tokens(model, wanted.seed, run.measured["answers"]) == 0


@pytest.mark.parametrize("system", READING_ALL)
def test_systems_that_read_everything_are_full_attention(model: Any, weights: Path, system: str) -> None:
    # Os-paging has less memory than its KV takes; vLLM has room for one sequence at a time.
    tight = {"os-paging": {"kv": "60 KiB"}, "vllm": {"in_memory_kv": "200 KiB"}}.get(system, {"kv": "90 MiB"})
    budget = {"kv": None} | tight
    wanted = scenario(weights, system, budget=budget)
    run = run_scenario(wanted)
    assert run.outcome == "done"
    assert wrong_tokens(model, wanted.seed, run.measured["answers"]) == 0
    if system == "os-paging":
        assert run.measured["faulted_bytes"] > 0
    if system == "vllm":
        # One sequence of 150 + 24 tokens takes 11 pages of 16 tokens of 3 layers, and the other has them after it.
        assert run.measured["kv_buffer_bytes"] == 11 * 16 * 3 * 2 * 2 * 16 * 4


def test_few_blocks_are_not_full_attention(model: Any, weights: Path) -> None:
    """What the tests above compare does depend on what is read."""
    wanted = scenario(weights, "infinigen", policies={"selected_tokens": 4}, budget={"kv": "90 MiB"})
    assert wrong_tokens(model, wanted.seed, run_scenario(wanted).measured["answers"]) > 10


@pytest.mark.parametrize("system", SELECTING + CLUSTERS)
def test_a_system_runs_with_its_own_settings(weights: Path, system: str) -> None:
    wanted = scenario(weights, system, policies={"selected_tokens": 64}, budget={"kv": "1 MiB"}, workload={"output": 6})
    run = run_scenario(wanted)
    figures = metrics_for(wanted, run)
    assert run.outcome == "done"
    assert [len(answer) for answer in run.measured["answers"].values()] == [6, 6]
    assert figures["read_bytes"] > 0
    labels = {span.label for span in run.spans}
    assert {"Decompose", "Reconstruct"} <= labels if system == "shadowkv" else "Reconstruct" not in labels


def test_the_file_of_rebuilt_keys_holds_values_alone(weights: Path) -> None:
    """Per step and row two blocks of 32 tokens: half of what they take with their keys."""
    policies = {"selected_tokens": 64}
    shadowkv, loki = (scenario(weights, system, policies=policies) for system in ("shadowkv", "loki"))
    bytes_read = [metrics_for(one, run_scenario(one))["read_bytes"] for one in (shadowkv, loki)]
    # A token of one head takes 128 B with its key, and whole blocks of 512 B are read.
    steps_rows = (OUTPUT - 1) * 3 * 2 * 2
    assert bytes_read == [steps_rows * 64 * 64, steps_rows * 64 * 512]


@pytest.mark.parametrize("system", SELECTING + READING_ALL)
def test_the_simulator_moves_the_same_bytes(weights: Path, system: str) -> None:
    """Given what was selected live."""
    selecting = {"policies": {"selected_tokens": 64}} if system in SELECTING else {}
    wanted = scenario(weights, system, workload={"output": 12}, **selecting)
    live = run_scenario(wanted)
    simulated = run_scenario(wanted.model_copy(update={"backend": "sim"}), inputs=live.inputs)
    moved_alike(wanted, live, simulated)


def test_a_run_that_learns_late_of_its_last_token_counts_the_same_bytes(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last token leaves to be written has then been written before anybody looks."""
    wanted = scenario(weights, "infinigen-star", workload={"output": 4}, policies={"selected_tokens": 64})
    with monkeypatch.context() as late:
        fire = LiveWork.fire
        late.setattr(LiveWork, "fire", lambda work: (time.sleep(0.01), fire(work)))
        live = run_scenario(wanted)
    moved_alike(wanted, live, run_scenario(wanted.model_copy(update={"backend": "sim"}), inputs=live.inputs))


def moved_alike(wanted: Scenario, live: Run, simulated: Run) -> None:
    figures = [metrics_for(wanted, run) for run in (live, simulated)]
    for figure in ("read_bytes", "write_bytes", "reuse_rate", "tokens_decoded"):
        assert figures[0].get(figure) == figures[1].get(figure), figure
