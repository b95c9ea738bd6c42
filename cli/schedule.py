"""``kvferry schedule``: compares all schedulers on one loading problem."""

from typing import Annotated

import typer

from kvferry.cli.options import JsonOption, ScenarioArgument, SeedOption, SetOption, overrides


def schedule(
    scenario: ScenarioArgument,
    solver: Annotated[
        str | None, typer.Option("--solver", metavar="NAME", help="Also solve the MILP, with highs, cbc or gurobi.")
    ] = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    """Compare schedulers on a scenario's first request: makespan, gap to the bound, regret, time to solve."""
    from kvferry.analysis.envelope import provenance_of, to_json, versions
    from kvferry.analysis.remarks import unmeasured
    from kvferry.cli.checks import check_workload, scenario_for_run
    from kvferry.cli.progress import spinner
    from kvferry.cli.table import print_metrics
    from kvferry.pipelines.loading.schedules import compare_schedules
    from kvferry.specs.errors import quoted

    loaded = scenario_for_run(scenario, overrides(settings, seed))
    check_workload(loaded, "context-reuse", "kvferry schedule", "quickstart")
    with spinner(f"{loaded.name}: scheduling"):
        rows = compare_schedules(loaded, solver)
    if json:
        found = {"scenario": loaded.name, "seed": loaded.seed, "versions": versions(), "schedules": rows}
        found["provenance"] = provenance_of(loaded.device, loaded.model)
        print(to_json(found), end="")
        return
    print_metrics(rows, title=loaded.name)
    if note := unmeasured(loaded.device):
        print(quoted(note))
