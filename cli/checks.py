"""A scenario as the command line loads it: valid in itself, and all its names known."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kvferry.pipelines.systems import SYSTEMS
from kvferry.scenarios.loader import load_scenario
from kvferry.scenarios.resolve import Complaint
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.errors import InputError, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import link_trace, load_trace


def scenario_for_run(source: str, overrides: Sequence[str]) -> Scenario:
    """The scenario, all that it names checked too. Raises InputError with file, line and key."""
    return load_scenario(source, overrides, check=names_in_use)


def scenarios_under(scenario: Scenario, systems: str | None) -> dict[str, Scenario]:
    """The scenario under each system of a comma-separated list, in its order; None: under all there are.

    Raises InputError for a system that is not known, or an empty list.
    """
    names = list(SYSTEMS) if systems is None else [name.strip() for name in systems.split(",") if name.strip()]
    if not names:
        raise InputError(f"--systems: {systems!r} names none; known: {', '.join(SYSTEMS)}")
    for name in names:
        try:
            pick("system", SYSTEMS, name)
        except InputError as error:
            raise InputError(f"--systems: {error}") from None
    return {name: scenario.under(name) for name in names}


def names_in_use(scenario: Scenario) -> Iterator[Complaint]:
    """What a valid scenario names that nothing knows: system, policies, cost models, traces."""
    try:
        system = pick("system", SYSTEMS, scenario.system)
    except InputError as error:
        yield Complaint(("system",), str(error))
        return
    for role, value in scenario.policy_values.items():
        yield from _complaint(("policies", role), partial(system.with_policies, {role: value}))
    for use, name in (("truth", scenario.costs.truth), ("estimate", scenario.costs.estimate)):
        yield from _complaint(("costs", use), partial(pick, "cost model", COST_MODELS, name))
    if scenario.link.trace is not None:
        yield from _complaint(("link", "trace"), partial(link_trace, scenario.link))
    if scenario.load is not None and scenario.load.trace is not None:
        yield from _complaint(("load", "trace"), partial(load_trace, scenario.load))


def _complaint(key: tuple[str, ...], use: Callable[[], object]) -> Iterator[Complaint]:
    try:
        use()
    except InputError as error:
        yield Complaint(key, str(error))
