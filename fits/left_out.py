"""Leave every device out of the fit of its engines, and keep how far its rates are off then.

python fits/left_out.py         # writes analysis/papers/devices/left_out.csv, and says what intervals hold

A second device is left out as well, one after the other: so intervals of a device can be made of the others' errors
without a number that has seen it. Rates of decoding of an engine with a single device cannot be left out. Of prefill,
an engine that has lost its only device has what engines without rows have: shares of the peak that are assumed. No
device's power is fitted on its rows.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from functools import cache

from engines import Numbers, Row, as_they_are, by_engine, fitted, rows

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.reproduction.left_out import COLUMNS, LEFT_OUT, coverage, held, read_left_out
from kvferry.analysis.reproduction.measured_rates import MeasuredRate, measured_powers, measured_rates, named_by_case
from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.costs.bound_by import bound_by
from kvferry.sim.slowed import PREFILL
from kvferry.specs.scenario import Scenario

# Settings of engines without rows of prefill, for what is assumed on a kind of processor: llama.cpp, ExecuTorch.
ASSUMED = {
    "gpu": ["device=rtx-5070", "engine=llama.cpp"],
    "cpu": ["device=snapdragon-8-gen-3", "engine=executorch", "precision.weights=bf16"],
}
# Tokens of two runs, whose difference is decoding alone.
DECODED = (8, 40)


def bound(row: Row, numbers: Numbers) -> str:
    return bound_by(row.with_numbers(*numbers), row.model, DecodeStep(1, row.rate.context_tokens))


def decoding() -> Iterator[dict[str, object]]:
    by_row = dict(zip(map(id, all_rows := list(rows())), named_by_case(row.rate for row in all_rows)))
    for (engine, kind), group in by_engine(all_rows).items():
        told = tuple(row for row in group if row.rate.fitted)

        @cache
        def numbers(devices: frozenset[str], told: tuple[Row, ...] = told) -> Numbers | None:
            chosen = [row for row in told if row.rate.device in devices]
            return fitted(chosen) if chosen else None

        devices = frozenset(row.rate.device for row in group)
        for row in group:
            own = row.rate.device
            without = numbers(frozenset({r.rate.device for r in told} - {own}))
            if without is None:
                continue
            known = {"metric": "decode", "case": by_row[id(row)], "device": own, "engine": engine, "kind": kind}
            known |= {"bound_by": bound(row, as_they_are(row)), "predicted_by": bound(row, without)}
            yield {**known, "also_without": "", "log_error": error(row, without)}
            for second in sorted(devices - {own}):
                both = numbers(frozenset({r.rate.device for r in told} - {own, second}))
                if both != without:
                    yield {**known, "also_without": second, "log_error": "" if both is None else error(row, both)}


def error(row: Row, numbers: Numbers) -> str:
    return f"{math.log(1 / row.rate.per_s / row.seconds(*numbers)):.4f}"


def prefill() -> Iterator[dict[str, object]]:
    rates = [rate for rate in measured_rates() if rate.metric in ("prefill", "first_token")]
    cases = {rate: case for metric in ("prefill", "first_token") for case, rate in _named(rates, metric)}
    for rate, case in cases.items():
        scenario = load_scenario("decode", rate.overrides())
        kind = scenario.device.processors[scenario.device.main].kind
        fitted_on = {one.device for one in rates if one.fitted and one.engine == rate.engine}
        known = {"metric": rate.metric, "case": case, "device": rate.device, "engine": rate.engine, "kind": kind}
        known |= {"bound_by": "prefill", "predicted_by": "prefill"}
        without = fitted_on - {rate.device}
        left = scenario if without or not fitted_on else assumed(scenario, kind)
        yield {**known, "also_without": "", "log_error": prefill_error(rate, left)}
        for second in sorted(without):
            assert without == {second}, f"{rate.engine}: fit on the rows of {sorted(without - {second})}"
            yield {**known, "also_without": second, "log_error": prefill_error(rate, assumed(scenario, kind))}


def _named(rates: Sequence[MeasuredRate], metric: str) -> Iterator[tuple[str, MeasuredRate]]:
    yield from named_by_case(rate for rate in rates if rate.metric == metric).items()


def assumed(scenario: Scenario, kind: str) -> Scenario:
    """The scenario with the shares of the peak in prefill of an engine that has no rows."""
    device, of_other = scenario.device, load_scenario("decode", ASSUMED[kind]).device
    usual = of_other.processors[of_other.main]
    processor = device.processors[device.main]
    shares = {kernel: usual.efficiency.get(kernel, usual.default_efficiency) for kernel in PREFILL}
    changed = processor.model_copy(update={"efficiency": {**processor.efficiency, **shares}})
    return scenario.model_copy(
        update={"device": device.model_copy(update={"processors": {**device.processors, device.main: changed}})}
    )


def prefill_error(rate: MeasuredRate, scenario: Scenario) -> str:
    ours_s = metrics_for(scenario, run_scenario(scenario))["ttft_s"]
    measured_s = rate.per_s if rate.metric == "first_token" else rate.context_tokens / rate.per_s
    return f"{math.log(measured_s / ours_s):.4f}"


def power() -> Iterator[dict[str, object]]:
    """What is drawn while decoding, of devices whose power no row was fitted on."""
    for row in measured_powers():
        joules, seconds = [], []
        for decoded in DECODED:
            scenario = load_scenario("decode", row.overrides(decoded))
            run = run_scenario(scenario)
            main = scenario.device.main
            joules.append(run.energy_j[main] if row.of == "processor" else sum(run.energy_j.values()))
            seconds.append(run.duration_s)
        ours_w = (joules[1] - joules[0]) / (seconds[1] - seconds[0])
        kind = scenario.device.processors[main].kind
        known = {"metric": "power", "case": row.case, "device": row.device, "engine": row.engine, "kind": kind}
        known |= {"bound_by": "power", "predicted_by": "power", "also_without": ""}
        yield {**known, "log_error": f"{math.log(row.watts / ours_w):.4f}"}


def main() -> None:
    with LEFT_OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*decoding(), *prefill(), *power()])
    found = coverage(read_left_out())
    for device in found:
        print(device)
    print(held(found))


if __name__ == "__main__":
    main()
