"""All that a valid scenario names, held against what there is: systems, policies, cost models, traces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from kvferry.model.folder import check_weights_of
from kvferry.pipelines.parameters import BadParameters
from kvferry.pipelines.plugins import use_installed
from kvferry.pipelines.workload import System
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_scenario
from kvferry.scenarios.resolve import Complaint
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.errors import InputError, pick
from kvferry.specs.link import LinkSpec
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import link_trace, load_trace
from kvferry.traces.round_trips import round_trips_of


def check_names(scenario: Scenario) -> None:
    """Raises InputError with a line for each fault that ``names_in_use`` finds: for scenarios built in Python."""
    faults = [f"{'.'.join(map(str, fault.key))}: {fault.what}" for fault in names_in_use(scenario)]
    if faults:
        raise InputError("\n".join(faults))


def system_of(kind: str, name: str) -> System:
    """The system of that name for a kind of workload. Raises InputError; for a system of another kind, it names a
    scenario that has it."""
    own = WORKLOADS[kind].systems
    if name in own:
        return own[name]
    for other, of_other in WORKLOADS.items():
        if name in of_other.systems:
            raise InputError(
                f"{name!r} is a system for workload kind {other}, and this workload is {kind}; with workload.kind"
                f" {other} it would do (try: kvferry run {_example(name, other)}), or here one of {', '.join(own)}"
            )
    return pick("system", own, name)


def names_in_use(scenario: Scenario) -> Iterator[Complaint]:
    """What a valid scenario names that nothing knows or that does not fit it. What installed plugins have is known."""
    use_installed()
    kind = WORKLOADS[scenario.workload.kind]
    try:
        system = system_of(scenario.workload.kind, scenario.system)
    except InputError as error:
        yield Complaint(("system",), str(error))
        return
    try:
        yield from kind.faults(scenario, system.with_policies(scenario.policy_values))
    except BadParameters as error:
        for fault in error.complaints:
            of_all = not fault.key or fault.key[0] in scenario.policies
            at = ("policies",) if of_all else ("system_policies", scenario.system)
            yield replace(fault, key=(*at, *fault.key))
    yield from _of_other_systems(scenario)
    if scenario.runtime is not None and scenario.workload.kind not in ("decode", "session"):
        what = f"is of decoding from KV elsewhere than in memory, {scenario.workload.kind} has none; leave it out"
        yield Complaint(("runtime",), what, at_key=True)
    if not kind.of_many_machines(scenario):
        what = f"{scenario.workload.kind} runs on the device alone; leave it out"
        yield from (Complaint(("machines", name), what, at_key=True) for name in scenario.machines)
    if scenario.backend == "torch" and scenario.live.weights not in (None, "random"):
        # By the files of its folder alone: torch takes seconds to be there. Models of other machines may lie elsewhere.
        yield from _complaint(("live", "weights"), partial(check_weights_of, str(scenario.live.weights)))
    truth, estimate = scenario.costs.truth, scenario.costs.estimate
    # Of one model for both, what is wrong is said once.
    costs: dict[tuple[str, ...], str] = {("costs", "truth"): truth, ("costs", "estimate"): estimate}
    for key, name in ({("costs",): truth} if truth == estimate else costs).items():
        yield from _complaint(key, partial(main_costs, name, scenario.device, scenario.model))
    for name, machine in scenario.machines.items():
        yield from _complaint(
            ("machines", name, "device"), partial(main_costs, scenario.costs.truth, machine.device, machine.model)
        )
    links: dict[tuple[str, ...], LinkSpec | None] = {("link",): scenario.link}
    links |= {("machines", name, "link"): machine.link for name, machine in scenario.machines.items()}
    for key, link in links.items():
        if link is not None and link.round_trips is not None:
            yield from _complaint((*key, "round_trips"), partial(round_trips_of, link))
        if link is not None and link.varies and not kind.of_many_machines(scenario):
            what = f"is of messages between machines, of which {scenario.workload.kind} has none; leave it out"
            yield Complaint((*key, "jitter" if link.round_trips is None else "round_trips"), what, at_key=True)
        for way_key, way in ((key, link), ((*key, "up"), link and link.up)):
            if way is not None and way.trace is not None:
                yield from _complaint((*way_key, "trace"), partial(link_trace, way))
    if scenario.load is not None and scenario.load.trace is not None:
        yield from _complaint(("load", "trace"), partial(load_trace, scenario.load))


def _of_other_systems(scenario: Scenario) -> Iterator[Complaint]:
    """What is wrong with policies of systems that this run does not have."""
    for name in scenario.system_policies:
        at = ("system_policies", name)
        try:
            system = system_of(scenario.workload.kind, name)
            if name != scenario.system:
                system.with_policies(scenario.under(name).policy_values)
        except BadParameters as error:
            yield from (replace(fault, key=(*at, *fault.key)) for fault in error.complaints)
        except InputError as error:
            yield Complaint(at, str(error), at_key=True)


def _complaint(key: tuple[str, ...], use: Callable[[], object]) -> Iterator[Complaint]:
    try:
        use()
    except InputError as error:
        yield Complaint(key, str(error))


def _example(system: str, kind: str) -> str:
    """Arguments of ``kvferry run`` under which that system runs, simulated if possible."""
    found = {name: load_scenario(name) for name in names("scenario")}
    fit = [name for name, scenario in found.items() if scenario.workload.kind == kind]
    best = min(fit, key=lambda name: (found[name].system != system, found[name].backend != "sim", name))
    return best if found[best].system == system else f"{best} --system {system}"
