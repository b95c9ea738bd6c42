"""Run one scenario, in the modelled world or in the real one: from its description to what it leaves behind."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter

import numpy as np

from kvferry.backends.needs import Needs
from kvferry.backends.sim.world import sim_world
from kvferry.backends.world import NO_INPUTS, Inputs, OpenWorld, Say, World
from kvferry.machine.machine import Refused
from kvferry.machine.span import Tell
from kvferry.pipelines.checks import check_names
from kvferry.pipelines.plugins import naming_plugins
from kvferry.pipelines.record import MachineRecord, Outcome, Run
from kvferry.pipelines.tally import Tally, Totals
from kvferry.pipelines.workload import Flow, Infeasible, Progress, System
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.policies.engine_memory import besides_weights_bytes
from kvferry.policies.ledger import KEPT_FREE
from kvferry.specs import human
from kvferry.specs.assist import AssistSpec
from kvferry.specs.budget import DecodeBudget
from kvferry.specs.errors import LinkDown, MissingExtra, OutOfMemory, pick
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario
from kvferry.specs.weight_format import OF_GGUF
from kvferry.traces.derived import course
from kvferry.traces.resolve import with_end

# Of the link's course that a run keeps for pictures; a longer run keeps means over time.
MOST_LINK_PIECES = 100_000
# Of weights that engines read and keep an answer's quality with.
_FEW_BITS = 4.0


def _torch_world(
    scenario: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say
) -> AbstractContextManager[World]:
    # Imported when asked for: torch is an extra, and takes seconds to load.
    try:
        from kvferry.backends.live.world import live_world
    except ImportError as error:
        raise MissingExtra(f"backend torch needs {error.name}: pip install '.[torch]'") from None

    return live_world(scenario, needs, inputs, tell, say)


BACKENDS: dict[str, OpenWorld] = {"sim": sim_world, "torch": _torch_world}


@naming_plugins()
def run_scenario(
    scenario: Scenario,
    progress: Progress = lambda done, of: None,
    system: System | None = None,
    *,
    inputs: Inputs | None = None,
    say: Say = lambda what: None,
    open_world: OpenWorld | None = None,
) -> Run:
    """Carry out every request of a scenario in its backend's world.

    Calls `progress` with how much is done, of how much, and `say` with what is made ready before. Runs `system` instead
    of the one that the scenario names, if given, in the world that `open_world` opens, on the recorded `inputs`.

    Raises InputError for names and settings that do not exist or fit. A model or context that does not fit, a link that
    ends and Ctrl-C are outcomes of the Run, which holds what was finished by then. Raises KvferryError with file and
    line for an error in a plugin.
    """
    began_s = perf_counter()
    check_names(scenario)
    kind = WORKLOADS[scenario.workload.kind]
    system = system or kind.systems[scenario.system].with_policies(scenario.policy_values)
    inputs = inputs or NO_INPUTS
    flow = kind.flow(scenario, system, progress, inputs)
    open_world = open_world or pick("backend", BACKENDS, scenario.backend)
    tally = Tally()
    with open_world(scenario, flow.needs, inputs, tally, say) as world:

        def totals() -> Totals:
            now_s = world.machine.env.now
            return Totals(
                now_s=now_s,
                busy_s=tally.busy_s,
                n_bytes=tally.n_bytes,
                energy_j=world.meters.energy_j(now_s),
                storage_utilisation=world.meters.storage_utilisation(now_s),
            )

        outcome, why = _drive(world, flow, totals, scenario)
        ran_s, end = perf_counter() - began_s, totals()
        left = flow.left(world, end)
        # Of several devices, of the one that held most.
        memory = max((machine.memory for machine in world.crowd.devices), key=lambda memory: memory.peak_bytes)
        # Something is fetched, or machines talk.
        linked = len(flow.needs) > 1 or any(need.fetches for need in flow.needs.values())
        times_s, rates = _link_over(world, end.now_s) if linked else ((), ())
        return Run(
            outcome=outcome,
            why=why,
            requests=tuple(left.requests),
            decoded=left.decoded,
            assisted=left.assisted,
            sessions=left.sessions,
            notes=left.notes,
            spans=tuple(tally.spans),
            counted=tally,
            duration_s=end.now_s,
            energy_j=dict(end.energy_j),
            memory_capacity_bytes=memory.capacity_bytes,
            memory_peak_bytes=memory.peak_bytes - memory.peak_of(KEPT_FREE),
            memory_at_peak=memory.at_peak,
            machines=_beside_the_device(world, end.now_s),
            kv_memory_peak_bytes=memory.peak_of("kv"),
            link_times_s=times_s,
            link_bytes_per_s=rates,
            warmth=world.meters.warmth(end.now_s),
            inputs=world.content.inputs(),
            measured={"simulation_s": ran_s, "bounds_s": perf_counter() - began_s - ran_s} | world.meters.measured(),
        )


def run_whole(scenario: Scenario, progress: Progress = lambda done, of: None, system: System | None = None) -> Run:
    """Returns the same for one of several runs that are nothing without each other. Raises KeyboardInterrupt where
    Ctrl-C ends it: as an outcome it would pass for that of a scenario that does not fit."""
    run = run_scenario(scenario, progress, system)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def _drive(world: World, flow: Flow, totals: Callable[[], Totals], scenario: Scenario) -> tuple[Outcome, str]:
    """Outcome, and why it is not "done"."""
    if world.weights_refused:
        return "out_of_memory", f"{world.weights_refused}; {_would_fit(scenario, world.weights_refused)}"
    env = world.machine.env
    done = env.process(flow.run(world, totals))
    try:
        env.run(until=done)
    except OutOfMemory as error:
        return "out_of_memory", str(error)
    except (Infeasible, LinkDown) as error:
        return "infeasible", str(error)
    except KeyboardInterrupt:
        return "interrupted", flow.kept()
    except RuntimeError:
        # SimPy's where nothing is left that could happen.
        # Messages can be lost with the end of a link.
        if done.triggered or not _link_may_end(scenario) or env.peek() < math.inf:
            raise
        return "infeasible", "the link has ended, and what was lost with it is waited for as long as it takes"
    return "done", ""


def _would_fit(scenario: Scenario, refused: Refused | OutOfMemory) -> str:
    """Returns what lets a model run that does not fit into memory."""
    fewer = _fewer_bits(scenario, refused.free_bytes) if isinstance(refused, Refused) else None
    instead = "" if fewer is None else f" or fewer bits of weights (--set precision.{fewer})"
    would = f"a smaller model{instead} would do"
    if not isinstance(scenario.budget, DecodeBudget) or scenario.budget.offload is not None:
        return would
    to = "storage" if scenario.device.memory.unified else "cpu"
    return f"{would}, or some layers elsewhere: --set budget.offload={to}"


def _fewer_bits(scenario: Scenario, free_bytes: float) -> str | None:
    """Returns the setting with which weights fit, and what they take then: where they have a format, that of those its
    engine reads which keeps the most bits beside all else that the engine holds; None: none does."""
    model, engine = scenario.model, scenario.device.engine
    if model.weights is None:
        few = model.model_copy(update={"weight_bits": _FEW_BITS})
        fits = few.weight_bytes <= min(free_bytes, model.weight_bytes)
        return f"weight_bits={_FEW_BITS:g}: {human.size(few.weight_bytes)}" if fits else None
    read = [name for name in (engine.weights if engine else OF_GGUF) if name != "mxfp4" or model.experts]
    sizes = {name: model.model_copy(update={"weights": name}).weight_bytes for name in read}
    room_bytes = free_bytes - besides_weights_bytes(scenario)
    fitting = [name for name, n_bytes in sizes.items() if n_bytes <= room_bytes and n_bytes < model.weight_bytes]
    best = max(fitting, key=lambda name: (sizes[name], name), default=None)
    return None if best is None else f"weights={best}: {human.size(sizes[best])}"


def _link_may_end(scenario: Scenario) -> bool:
    networks = scenario.workload.networks or () if isinstance(scenario.workload, AssistSpec) else ()
    links = [scenario.link, *(machine.link for machine in scenario.machines.values()), *(one.link for one in networks)]
    ways = [way for link in links if link is not None for way in (link, link.up)]
    return any(way is not None and way.trace is not None and with_end(way).on_end == "end" for way in ways)


def _beside_the_device(world: World, until_s: float) -> dict[str, MachineRecord]:
    return {
        name: MachineRecord(
            energy_j=world.meters.energy_j(until_s, name),
            memory_capacity_bytes=machine.memory.capacity_bytes,
            memory_peak_bytes=machine.memory.peak_bytes - machine.memory.peak_of(KEPT_FREE),
            memory_at_peak=machine.memory.at_peak,
        )
        for name, machine in world.machines.items()
        if name != DEVICE
    }


def _link_over(world: World, until_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Edges (n + 1) and rates (n) of the replayed link."""
    edges, rates = (
        course(world.rates.link, 0.0, until_s, MOST_LINK_PIECES) if until_s > 0 else (np.zeros(1), np.zeros(0))
    )
    return tuple(edges.tolist()), tuple(rates.tolist())
