"""What the figures of a run rest on, and which could not be had: lines that stand beside every result."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kvferry.analysis.ran_on import drawn_ids
from kvferry.pipelines.decoding.runtimes import runtime_of
from kvferry.pipelines.record import Run
from kvferry.scenarios.prototypes import instead_of_a_prototype
from kvferry.specs.device import CalibrationSpec, DeviceSpec
from kvferry.specs.machine import DEVICES
from kvferry.specs.scenario import Scenario
from kvferry.specs.stored_model import replaced_weights

BOUNDS = ("bound_s", "bound_gap", "regret", "regret_p95")


def how_known(device: DeviceSpec) -> str | None:
    """A line that says that a profile was not measured, and how to measure one, or how and when it was; None for a
    measured profile that does not say. Of a prototype's profile it says what is the hardware alone."""
    if device.is_measured:
        return None if device.calibration is None else f"{device.name} was {_measured(device.calibration)}"
    instead = instead_of_a_prototype(device)
    own = "" if instead is None else f" and names no engine, as papers' profiles ({instead}: by data sheet)"
    return (
        f"{device.name} is not a measured device (kvferry devices says where its figures are from){own};"
        " kvferry calibrate measures one"
    )


def errors_of_the_profile(device: DeviceSpec) -> str | None:
    """Before the two worlds are compared: whose errors these will be; None where a profile was measured with care."""
    if not device.is_measured:
        what = "was not measured: errors will be the profile's, not the simulator's"
    elif device.calibration is not None and (device.calibration.quick or device.calibration.busy):
        what = f"was {_measured(device.calibration)}: errors will be the profile's as well as the simulator's"
    else:
        return None
    how = "kvferry calibrate measures one in minutes, for --set device=DIR/profile.yaml --set costs=table"
    return f"{device.name} {what}; {how}"


def _measured(how: CalibrationSpec) -> str:
    """measured on 2026-11-23, quickly, on a busy machine (load 19 on 2 cores); repetitions spread by 12 % ..."""
    quickly = ", quickly (--quick: fewer points and repetitions)" if how.quick else ""
    busy = f", on a busy machine (load {how.load_average:g} on {how.cores or 1} cores)" if how.busy else ""
    spreads = f"{how.median_spread:.0%} in the median, {how.largest_spread:.0%} at most ({how.largest_spread_of})"
    return f"measured on {how.date}{quickly}{busy}; repetitions spread by {spreads.replace('%', ' %')}"


def software(scenario: Scenario) -> str | None:
    """A line that says which runtime a run assumes; None where it is known, or makes no difference."""
    return next(_software([(scenario.system, scenario)], named=False), None)


def _software(scenarios: Iterable[tuple[str, Scenario]], *, named: bool) -> Iterator[str]:
    """A line for each device on which runtimes are assumed, and what for, with names of systems if `named`."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for name, scenario in scenarios:
        runtime = None if scenario.backend != "sim" else runtime_of(scenario)
        if runtime is not None and runtime.assumed:
            of_device = found.setdefault((runtime.what, scenario.device.name), {})
            of_device.setdefault(runtime.about(scenario.device), {})[name] = None
    for (what, device), by_runtime in found.items():
        which = (f"{', '.join(of)}: {about}" if named else about for about, of in by_runtime.items())
        yield (
            f"{what} is assumed on {device}: {'; '.join(which)}; --set runtime=NAME chooses another (kvferry runtimes)"
        )


def has_bounds(scenario: Scenario) -> bool:
    """Whether a bound on the load says something. In a real run it is made from the profile's estimates: where these
    were not measured on the device, a load may take ten times the bound, or less than it."""
    return scenario.backend == "sim" or scenario.device.is_measured


def unpowered(device: DeviceSpec, run: Run, machines: Collection[str] = ("", f"{DEVICES}/")) -> list[str]:
    """Components that worked in a run and whose power the profile does not give; a real run meters none. `machines`:
    what stands before the names of their resources."""
    watts: Mapping[str, float | None] = {
        **{name: processor.active_w for name, processor in device.processors.items()},
        "decompress": device.decompressor.active_w,
        "storage": device.storage.active_w if device.storage else None,
        "link": device.network.active_w,
    }
    worked = [
        name
        for name, power in watts.items()
        if not power and any(f"{machine}{name}" in run.tally.occupied for machine in machines)
    ]
    return ([] if device.base_w else ["base"]) + ["network" if name == "link" else name for name in worked]


def why_no_energy(scenario: Scenario, run: Run) -> str | None:
    """Why a run's energy cannot be given as a sum; None where it can."""
    if scenario.backend != "sim":
        return "a real run has no meter"
    missing = unpowered(scenario.device, run)
    return f"{scenario.device.name} has no power for {', '.join(missing)} (active_w, base_w)" if missing else None


def why_no_cloud_energy(scenario: Scenario, run: Run) -> str | None:
    """Why the energy of the cloud of devices cannot be given; None where it can, or where none is asked for."""
    if (run.assisted is None and run.sessions is None) or scenario.backend != "sim":
        return None
    missing = {
        machine.device.name: unpowered(machine.device, run, [f"{one}/" for one in machine.instances(name)])
        for name, machine in scenario.machines.items()
        if run.machines
    }
    lacks = [f"{name} has no power for {', '.join(parts)}" for name, parts in missing.items() if parts]
    return f"{'; '.join(lacks)} (active_w, base_w)" if lacks else None


def _profiles(scenario: Scenario) -> list[str]:
    """Returns what ``how_known`` says of the device's profile and of the other machines', and which weights the model
    has in place of the ones that its scenario or its file says."""
    devices = (scenario.device, *(machine.device for machine in scenario.machines.values()))
    weights = replaced_weights(scenario.model.source)
    said = None if weights is None else f"weights of {scenario.model.name}: {weights}"
    return [line for line in (*map(how_known, devices), said) if line]


def rests_on(scenarios: Sequence[Scenario]) -> list[str]:
    """Returns a line for each thing that figures of these scenarios rest on, also where runs failed: profiles of
    devices, and assumed runtimes."""
    profiles = dict.fromkeys(line for scenario in scenarios for line in _profiles(scenario))
    systems = [(scenario.system, scenario) for scenario in scenarios]
    return [*profiles, *_software(systems, named=len({name for name, _ in systems}) > 1)]


def remarks_on(runs: Mapping[str, tuple[Scenario, Run]], same_on_all_runtimes: Collection[str] = ()) -> list[str]:
    """For the user, below the figures of runs by system: a line for each thing, whatever number of systems it holds
    for. `same_on_all_runtimes`: systems whose figures do not depend on the runtime."""
    found: dict[str, None] = {}
    assume = {name: one for name, (one, _) in runs.items() if name not in same_on_all_runtimes}
    for scenario, run in runs.values():
        lines = _profiles(scenario)
        if not has_bounds(scenario) and any(record.bound_s is not None for record in run.requests):
            lines.append("no bound or regret: they would be made from figures that were not measured here")
        if why := why_no_energy(scenario, run):
            lines.append(f"energy is not counted: {why}")
        if why := why_no_cloud_energy(scenario, run):
            lines.append(f"the cloud's energy is not counted: {why}")
        if why := drawn_ids(scenario):
            lines.append(why)
        found |= dict.fromkeys(lines)
    return [*found, *_software(assume.items(), named=len(runs) > 1)]
