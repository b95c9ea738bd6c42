"""What every world keeps to, for every kind of workload: machines by name, inputs to replay, a clock from 0."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tiny import LIVE, TINY

from kvferry.backends.world import DEVICE, Inputs, World
from kvferry.machine.span import Span
from kvferry.pipelines.run import BACKENDS
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Flow
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

# A scenario of every kind, small enough for the backend.
DESCRIBED: dict[str, dict[str, dict[str, Any]]] = {"sim": TINY, "torch": LIVE}
IN_EVERY_WORLD = pytest.mark.parametrize(
    ("backend", "kind"),
    [
        pytest.param(backend, kind, marks=[pytest.mark.torch] if backend == "torch" else [])
        for backend, of_kinds in DESCRIBED.items()
        for kind in of_kinds
    ],
)


@contextmanager
def opened(backend: str, kind: str) -> Iterator[tuple[World, Flow, Scenario, list[Span]]]:
    scenario, spans = load_scenario(DESCRIBED[backend][kind]), list[Span]()
    system = WORKLOADS[kind].systems[scenario.system].with_policies(scenario.policy_values)
    flow = WORKLOADS[kind].flow(scenario, system, lambda done, of: None)
    with BACKENDS[backend](scenario, flow.needs, Inputs(), spans.append, lambda what: None) as world:
        yield world, flow, scenario, spans


def totals(world: World) -> Totals:
    now_s = world.machine.env.now
    return Totals(now_s=now_s, busy_s={}, n_bytes={}, energy_j=world.energy_j(now_s), storage_utilisation=0.0)


def test_there_is_a_scenario_of_every_kind_in_every_backend() -> None:
    assert set(DESCRIBED) == set(BACKENDS)
    assert all(set(of_kinds) == set(WORKLOADS) for of_kinds in DESCRIBED.values())


@IN_EVERY_WORLD
def test_a_world_keeps_its_word(backend: str, kind: str) -> None:
    with opened(backend, kind) as (world, flow, scenario, spans):
        assert world.machines[DEVICE] is world.machine
        assert len({id(machine.env) for machine in world.machines.values()}) == 1
        assert world.weights_refused is None
        assert world.machine.memory.used_bytes == scenario.model.weight_bytes
        assert world.link.amount(0.0, 1.0) > 0
        assert 0 < world.available.amount(0.0, 1.0) <= 1
        began_s = world.machine.env.now
        env = world.machine.env
        env.run(until=env.process(flow.run(world, lambda: totals(world))))
        left = flow.left(world, totals(world))
        # Its clock begins at 0, and every span lies on it.
        assert 0 <= began_s <= min(span.start_s for span in spans)
        assert all(span.start_s <= span.end_s <= env.now for span in spans)
        assert all(record.first_token_s is not None for record in left.requests)
        assert all(part_j >= 0 for part_j in world.energy_j(env.now).values())
        assert 0 <= world.storage_utilisation(env.now) <= 1
        assert all(isinstance(name, str) for name in world.measured())


@IN_EVERY_WORLD
def test_what_one_world_recorded_another_replays(backend: str, kind: str) -> None:
    with opened(backend, kind) as (world, flow, scenario, _):
        env = world.machine.env
        env.run(until=env.process(flow.run(world, lambda: totals(world))))
        recorded = world.inputs()
    with BACKENDS["sim"](scenario, flow.needs, recorded, lambda span: None, lambda what: None) as replayed:
        assert replayed.inputs() == recorded
        if recorded.stored is not None:
            for n, stored in enumerate(recorded.stored):
                assert replayed.stored(n) is stored
