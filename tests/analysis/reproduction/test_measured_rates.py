"""Rates that people measured: rows as runs and cells, what is wrong with a row, and how far ours are off."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.analysis.reproduction.measured_rates import MeasuredRate, measured_rates, named_by_case
from kvferry.analysis.reproduction.paper import load_paper
from kvferry.analysis.reproduction.rate_errors import errors_by_device, rates_of
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

HEAD = "device,engine,model,weights,metric,context_tokens,value,fitted,source\n"
ROW = "rtx-5070,llama.cpp,llama-3.1-8b,q4_k_m,{metric},{tokens},{value},,somebody\n"


def rate(metric: str, value: str, tokens: int = 512) -> MeasuredRate:
    keys = HEAD.strip().split(",")
    values = ROW.format(metric=metric, tokens=tokens, value=value).strip().split(",")
    return MeasuredRate.model_validate(dict(zip(keys, values)))


def test_a_row_is_a_run_and_a_cell() -> None:
    scenario = load_scenario("decode", rate("decode", "105.3").overrides())
    assert (scenario.device.name, scenario.model.weights, scenario.workload.context) == ("rtx-5070", "q4_k_m", 512)
    cell = rate("decode", "105.3").cell("decoding", "a case", "in-memory")
    assert (cell["metric"], cell["printed"]) == ("throughput_tokens_per_s", "105.3")
    # 512 tokens at 1,024 tokens/s are there after half a second.
    assert rate("prefill", "1024").cell("e", "c", "s")["printed"] == "0.5000"
    assert rate("first_token", "1.5").cell("e", "c", "s")["printed"] == "1.5"


def test_a_rate_that_was_measured_twice_is_two_cases() -> None:
    one = rate("decode", "105.3")
    assert list(named_by_case([one, one])) == [one.case, f"{one.case} (2)"]


@pytest.mark.parametrize(
    ("metric", "tokens", "value", "said"),
    [("decode", 0, "5", "context_tokens"), ("speed", 5, "5", "metric"), ("decode", 5, "fast", "value")],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, metric: str, tokens: int, value: str, said: str) -> None:
    file = tmp_path / "rates.csv"
    good = ROW.format(metric="decode", tokens=5, value="5")
    file.write_text(HEAD + good + ROW.format(metric=metric, tokens=tokens, value=value))
    with pytest.raises(InputError) as error:
        measured_rates(file)
    assert f"rates.csv:3: {said}" in str(error.value)


def test_every_row_names_what_there_is() -> None:
    paper = load_paper("devices")
    assert sum(len(experiment.cases) for experiment in paper.experiments.values()) == len(measured_rates())
    for case in {(rate.device, rate.engine, rate.model, rate.weights): rate for rate in measured_rates()}.values():
        assert load_scenario("decode", case.overrides()).device.engine is not None


def test_rates_of_two_devices_are_as_near_as_the_docs_say() -> None:
    # A change of an engine, a format or the roofline that moves these is to be looked at: fits/engines.py.
    cells = [*rates_of("rtx-5070"), *rates_of("gtx-1050-ti")]
    assert np.median([abs(cell["relative_error"]) for cell in cells]) < 0.04
    by_device = {group["device"]: group for group in errors_by_device(cells)}
    assert (by_device["rtx-5070"]["rows"], by_device["gtx-1050-ti"]["rows"]) == (13, 9)
    assert by_device["rtx-5070"]["least"] <= by_device["rtx-5070"]["most"]
