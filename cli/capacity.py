"""``kvferry capacity``: how many machines let enough requests keep their limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry.cli.options import JsonOption, PluginOption, ScenarioArgument, SetOption, as_options

if TYPE_CHECKING:
    from kvferry.analysis.capacity import Capacity, Trial


def capacity(
    scenario: ScenarioArgument,
    least: Annotated[
        str, typer.Option("--least", metavar="KEY", help="The setting whose least whole number is looked for.")
    ] = "machines.cloud.count",
    slo_attainment: Annotated[
        float, typer.Option("--slo-attainment", help="The share of requests that must keep the scenario's slo.")
    ] = 0.95,
    most: Annotated[int, typer.Option("--most", min=1, help="The largest number to try.")] = 4096,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Seeds of each number; medians count.")] = 1,
    price_per_hour: Annotated[
        float | None,
        typer.Option("--price-per-hour", min=0, help="Of a machine of the cloud; says what 1,000 requests cost."),
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File for the result as JSON.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the least number of machines with which enough requests keep their limits (slo).

    1, 2, 4, ... are tried until enough do, then what lies between. Exit code 1: no number is enough, and the reason.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.api.capacity import capacity as carry_out
    from kvferry.cli.progress import say
    from kvferry.specs import human
    from kvferry.specs.errors import quoted
    from kvferry.system.whole_file import write_file

    def tell(trial: Trial) -> None:
        say(f"{least} {trial.count:,}: {trial.why or f'{trial.attainment:.1%} within the slo'}")

    with as_options("least", "slo_attainment", "most", "seeds"):
        found = carry_out(
            scenario, least, settings or [], slo_attainment=slo_attainment, most=most, seeds=seeds, tried=tell
        )
    result = found.to_json() | (
        {} if price_per_hour is None else {"price_per_1000_requests": _price(found, price_per_hour)}
    )
    if output is not None:
        write_file(output, to_json(result).encode())
        say(f"written to {output}")
    if json:
        sys.stdout.write(to_json(result))
    else:
        _show(found)
        if price_per_hour is not None and (price := _price(found, price_per_hour)) is not None:
            print(
                f"at {price_per_hour:g} an hour and machine, 1,000 requests cost {price:.3g} with {found.best.count:,}"
            )
        took = human.seconds(found.best.machine_s) if found.best.machine_s else None
        if took:
            print(f"a request takes {took} of a machine's time, idle time included")
        print(quoted(f"least {least}: {found.least:,}" if found.least is not None else found.why))
    if found.least is None:
        raise typer.Exit(1)


def _price(found: Capacity, per_hour: float) -> float | None:
    used_s = found.best.machine_s
    # What is not enough has no price.
    return None if used_s is None or found.least is None else 1000 * used_s / 3600 * per_hour


def _show(found: Capacity) -> None:
    from kvferry.cli.table import print_table
    from kvferry.specs import human

    kinds = list(dict.fromkeys(kind for one in found.trials for kind in one.machines))
    columns = [
        found.setting, "within the slo", "TTFT, p95", "TPOT, p95", "tokens/s",
        *(f"{kind}: machines, busy" for kind in kinds),
    ]  # fmt: skip

    def figure(one: Trial, key: str) -> str | None:
        return human.of_unit(key)(one.figures[key]) if key in one.figures else None

    rows = [
        [
            f"{one.count:,}{' <' if one.count == found.least else ''}",
            f"{one.attainment:.1%}",
            *(figure(one, key) for key in ("ttft_p95_s", "tpot_p95_s", "throughput_tokens_per_s")),
            *(f"{one.machines[kind]:,}, {one.busy[kind]:.0%}" if kind in one.machines else None for kind in kinds),
        ]
        for one in found.trials
    ]
    print_table(columns, rows)
