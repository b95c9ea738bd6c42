"""SpeContext's Tab. 3 by what memory holds, and by kernels alone: what needs no run."""

import csv

import pytest

from kvferry.analysis.reproduction.memory_measurements import largest_batch
from kvferry.analysis.reproduction.paper import PAPERS
from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.decoding.queue_work import QueueWork
from kvferry.pipelines.decoding.runtimes import on_runtime
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

SYSTEMS = {
    "eager": "full-eager",
    "flash_attention": "full-flash",
    "flashinfer": "full-flashinfer",
    "shadowkv": "shadowkv",
    "specontext": "specontext",
}
with (PAPERS / "specontext/throughput.csv").open() as file:
    ROWS = list(csv.DictReader(file))


def scenario_of(row: dict[str, str], model: str = "deepseek-r1-distill-llama-8b") -> Scenario:
    settings = {"system": SYSTEMS[row["method"]], "workload.input": row["input"], "workload.output": row["output"]}
    settings |= {"workload.batch": row["requests"] or "1", "model": model}
    return load_scenario("specontext/throughput", [f"{key}={value}" for key, value in settings.items()])


@pytest.mark.parametrize("model", ["deepseek-r1-distill-llama-8b", "qwen3-8b"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['method']} {row['input']} {row['output']}")
def test_as_many_requests_fit_as_are_printed_and_none_where_memory_runs_out(row: dict[str, str], model: str) -> None:
    most = largest_batch(scenario_of(row, model))["batch"]
    if row["tokens_per_s"] == "OOM":
        assert most == 0
    elif model == "deepseek-r1-distill-llama-8b":
        assert most >= int(row["requests"])
    else:
        # An eighth more layers of KV.
        assert most >= 0.8 * int(row["requests"])


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["method"] in ("eager", "flash_attention", "flashinfer") and row["requests"]],
    ids=lambda row: f"{row['method']} {row['input']} {row['output']}",
)
def test_full_attention_decodes_as_fast_as_printed(row: dict[str, str]) -> None:
    """In the mean a step attends to the prompt and half of the output. Half of the cells were fitted."""
    scenario, batch = scenario_of(row), int(row["requests"])
    tokens = int(row["input"]) + int(row["output"]) / 2
    kernel = DECODE_SYSTEMS[scenario.system].roles.attention
    queues = QueueWork(on_runtime(scenario).device, scenario.model)
    step_s = queues.op_s(DecodeStep(batch, tokens, kernel=kernel))
    assert batch / step_s == pytest.approx(float(row["tokens_per_s"]), rel=0.12)
