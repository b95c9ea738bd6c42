"""A scenario as the command line loads it: valid in itself, and all its names known."""

from collections.abc import Sequence

from kvferry.pipelines.checks import names_in_use, system_of
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario


def scenario_for_run(source: str, overrides: Sequence[str], system: str | None = None) -> Scenario:
    """The scenario, all that it names checked too. Under another `system` than its own the file's policies are left
    out: they are its own system's. Raises InputError with file, line and key."""
    if system is None:
        return load_scenario(source, overrides, check=names_in_use)
    own = load_scenario(source, overrides).system
    dropped = [] if system == own else ["policies={}"]
    return load_scenario(source, [*dropped, *overrides, f"system={system}"], check=names_in_use)


def scenarios_under(scenario: Scenario, systems: str | None) -> dict[str, Scenario]:
    """The scenario under each system of a comma-separated list, in its order; None: those of its system's paper.

    Raises InputError for a system that is not known, or an empty list.
    """
    table = WORKLOADS[scenario.workload.kind].systems
    if systems is None:
        paper = system_of(scenario.workload.kind, scenario.system).paper
        names = [name for name, system in table.items() if system.paper == paper]
    else:
        names = [name.strip() for name in systems.split(",") if name.strip()]
    if not names:
        raise InputError(f"--systems: {systems!r} names none; known: {', '.join(table)}")
    for name in names:
        try:
            system_of(scenario.workload.kind, name)
        except InputError as error:
            raise InputError(f"--systems: {error}") from None
    return {name: scenario.under(name) for name in names}


def check_workload(scenario: Scenario, kind: str, command: str, example: str) -> None:
    """Raises InputError where `command` works on workloads of another kind than the scenario's; names an `example`."""
    if scenario.workload.kind != kind:
        raise InputError(
            f"workload.kind: {command} works on {kind}, and {scenario.name} is {scenario.workload.kind};"
            f" a scenario that it works on is {example}"
        )
