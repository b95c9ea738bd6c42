"""``kvferry schedule``: compares all schedulers on one loading problem."""

from typing import Annotated

import typer

from kvferry.cli.options import JsonOption, PluginOption, ScenarioArgument, SeedOption, SetOption, overrides


def schedule(
    scenario: ScenarioArgument,
    solver: Annotated[
        str | None, typer.Option("--solver", metavar="NAME", help="Also solve the MILP, with highs, cbc or gurobi.")
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    """Compare schedulers on a scenario's first request: what each plan promises, and what becomes of it.

    Planned figures are at the link's mean rate and by estimated costs: "plan" is how long the load takes by the order
    of stages, "plan, waiting" with every dependency waited for, "plan's bound" what no plan can beat there, "over it"
    how far above it the plan is. The plan is then carried out to the letter over the link as it varies: "load", beside
    "load's bound", which knows the whole trace, and the "regret" against that. A system adapts on the way: its regret
    in kvferry run is lower. "solving" is wall time.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.api.scenario import load
    from kvferry.api.schedule import schedule as compared
    from kvferry.cli.progress import spinner
    from kvferry.cli.table import print_metrics
    from kvferry.specs.errors import quoted

    loaded = load(scenario, overrides(settings, seed))
    with spinner(f"{loaded.name}: scheduling"):
        found = compared(loaded, solver=solver)
    if json:
        print(to_json(found.envelope), end="")
        return
    rows = [
        {**row, "load_bound_s": None if row["regret"] is None else row["load_s"] / (1 + row["regret"])}
        for row in found.rows
    ]
    print_metrics(rows, _COLUMNS, title=loaded.name)
    for note in found.remarks:
        print(quoted(note))


# Headings by the keys of `compare_schedules`, and the second bound, which the regret is against.
_COLUMNS = {
    "schedule": "schedule",
    "solve_s": "solving",
    "makespan_s": "plan",
    "completion_s": "plan, waiting",
    "bound_s": "plan's bound",
    "bound_gap": "over it",
    "load_s": "load",
    "load_bound_s": "load's bound",
    "regret": "regret",
}
