"""Leave every device out of the fit of its engines, and keep how far its rates are off then.

python fits/left_out.py         # writes analysis/papers/devices/left_out.csv, and says what intervals hold

A second device is left out as well, one after the other: so intervals of a device can be made of the others' errors
without a number that has seen it. Rates of an engine with a single device cannot be left out, nor those of prefill that
the engine's number was fitted on, as no other device has any; those that nothing was fitted on stay as they are.
"""

import csv
import math
from collections.abc import Collection, Iterator
from functools import cache

from engines import Numbers, Row, as_they_are, by_engine, fitted, rows

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.reproduction.left_out import COLUMNS, LEFT_OUT, coverage, held, read_left_out
from kvferry.analysis.reproduction.measured_rates import measured_rates, named_by_case
from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.costs.bound_by import bound_by


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


def prefill(measured_too: Collection[str] = ("prefill", "first_token")) -> Iterator[dict[str, object]]:
    for metric in measured_too:
        for case, rate in named_by_case(rate for rate in measured_rates() if rate.metric == metric).items():
            if rate.fitted:
                continue
            scenario = load_scenario("decode", rate.overrides())
            ours_s = metrics_for(scenario, run_scenario(scenario))["ttft_s"]
            measured_s = rate.per_s if metric == "first_token" else rate.context_tokens / rate.per_s
            kind = scenario.device.processors[scenario.device.main].kind
            known = {"metric": metric, "case": case, "device": rate.device, "engine": rate.engine, "kind": kind}
            known |= {"bound_by": "prefill", "predicted_by": "prefill", "also_without": ""}
            yield {**known, "log_error": f"{math.log(measured_s / ours_s):.4f}"}


def main() -> None:
    with LEFT_OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*decoding(), *prefill()])
    found = coverage(read_left_out())
    for device in found:
        print(device)
    print(held(found))


if __name__ == "__main__":
    main()
