"""What every world keeps to, for every kind of workload: machines by name, inputs to replay, a clock from 0."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held import engine_bytes
from tiny import LIVE, LIVE_MODEL, TINY, changed

from kvferry.backends.needs import ContextsInCloud, KvInPages, Needs, NoKv
from kvferry.backends.world import DEVICE, NO_INPUTS, Inputs, World
from kvferry.machine.machine import Refused
from kvferry.machine.ops import Batch, Chunks, DecodeStep, OutputHead, PrefillLayer
from kvferry.machine.span import Span
from kvferry.pipelines.run import BACKENDS, run_scenario
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Flow
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError, LinkDown
from kvferry.specs.scenario import Scenario
from kvferry.traces.format import StoredTrace, write_trace
from kvferry.traces.rate import RateTrace

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
    return Totals(now_s=now_s, busy_s={}, n_bytes={}, energy_j=world.meters.energy_j(now_s), storage_utilisation=0.0)


def test_there_is_a_scenario_of_every_kind_in_every_backend() -> None:
    assert set(DESCRIBED) == set(BACKENDS)
    for of_kinds in DESCRIBED.values():
        assert set(of_kinds) == set(WORKLOADS)


@pytest.mark.torch
def test_what_a_world_has_nothing_for_is_refused() -> None:
    # Random weights of 256 ids make no text, and prompts are sent as text.
    speechless = changed(LIVE["assist"], model=LIVE_MODEL, live={"weights": "random"})
    with pytest.raises(InputError, match=r"live\.weights: a prompt is sent as text, and this model has no tokenizer"):
        run_scenario(load_scenario(speechless))


@IN_EVERY_WORLD
def test_a_world_keeps_its_word(backend: str, kind: str) -> None:
    with opened(backend, kind) as (world, flow, scenario, spans):
        assert world.machines[DEVICE] is world.machine
        assert len({id(machine.env) for machine in world.machines.values()}) == 1
        assert world.weights_refused is None
        assert backend == "sim" or world.shortcuts.foresight is None
        assert world.shortcuts.may_skip == (backend == "sim")
        assert world.machine.memory.used_bytes == engine_bytes(scenario) > scenario.model.weight_bytes
        assert world.rates.link.amount(0.0, 1.0) > 0
        assert 0 < world.rates.available.amount(0.0, 1.0) <= 1
        began_s = world.machine.env.now
        env = world.machine.env
        env.run(until=env.process(flow.run(world, lambda: totals(world))))
        left = flow.left(world, totals(world))
        # Its clock begins at 0, and every span lies on it.
        assert 0 <= began_s <= min(span.start_s for span in spans)
        assert all(span.start_s <= span.end_s <= env.now for span in spans)
        assert all(record.first_token_s is not None for record in left.requests)
        assert all(part_j >= 0 for part_j in world.meters.energy_j(env.now).values())
        assert 0 <= world.meters.storage_utilisation(env.now) <= 1
        assert all(isinstance(name, str) for name in world.meters.measured())


@IN_EVERY_WORLD
def test_what_one_world_recorded_another_replays(backend: str, kind: str) -> None:
    with opened(backend, kind) as (world, flow, scenario, _):
        env = world.machine.env
        env.run(until=env.process(flow.run(world, lambda: totals(world))))
        recorded = world.content.inputs()
    with BACKENDS["sim"](scenario, flow.needs, recorded, lambda span: None, lambda what: None) as replayed:
        assert replayed.inputs() == recorded
        assert backend == "sim" or not replayed.may_skip
        if recorded.stored is not None:
            for n, stored in enumerate(recorded.stored):
                assert replayed.stored(n) is stored


# Requests that come on their own, with lengths of their own: about contexts in the cloud, and with all KV in memory.
COMING = {"requests": 3, "arrivals": {"rate": "10 requests/s"}, "spread": 0.2}
OPEN: dict[str, dict[str, Any]] = {
    "context-reuse": {"workload": {**COMING, "contexts": 1, "zipf": 1.0, "spread": 0}},
    "decode": {"system": "vllm", "policies": {}, "workload": COMING, "budget": {"kv": None, "kv_share": None}},
    "assist": {"workload": COMING},
}


@IN_EVERY_WORLD
def test_arrivals_that_a_world_recorded_are_those_of_another(backend: str, kind: str) -> None:
    if kind not in OPEN:
        return  # turns come by their own conversations
    described = changed(DESCRIBED[backend][kind], **OPEN[kind])
    described.pop("policies", None)
    recorded = run_scenario(load_scenario(described)).inputs
    assert recorded.arrivals is not None
    came_s = [one.arrival_s for one in recorded.arrivals]
    assert came_s[0] < came_s[1] < came_s[2]
    # Another seed draws other arrivals and lengths, unless they are given.
    other = load_scenario(described, ["seed=9"])
    open_sim = BACKENDS["sim"]
    replayed = run_scenario(other, inputs=recorded, open_world=open_sim)
    assert [record.arrival_s for record in replayed.requests] == pytest.approx(came_s)
    tokens = [len(record.token_times_s) for record in replayed.requests]
    assert tokens == [one.output for one in recorded.arrivals]
    assert replayed.inputs.arrivals is not None
    assert [one.arrival_s for one in replayed.inputs.arrivals] == pytest.approx(came_s)
    drawn = run_scenario(other, inputs=Inputs(stored=recorded.stored), open_world=open_sim).inputs.arrivals
    assert drawn is not None
    assert drawn[1].arrival_s != pytest.approx(came_s[1])
    with pytest.raises(InputError, match="3 requests were recorded, this run has 4"):
        run_scenario(load_scenario(described, ["workload.requests=4"]), inputs=recorded, open_world=open_sim)


# --- several machines ---------------------------------------------------------------------------------------------

BACKEND = pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=[pytest.mark.torch] if name == "torch" else []) for name in DESCRIBED]
)
LINK = {"rate": "800 kbit/s", "rtt": "10 ms", "up": {"rate": "80 kbit/s"}}


def several(backend: str, **cloud: Any) -> Scenario:
    described = DESCRIBED[backend]["decode"]
    of = {"device": "laptop-cpu", "model": LIVE_MODEL}
    machines = {"cloud": {**of, **cloud}, "phone": {**of, "link": LINK, "count": 2}}
    return load_scenario(changed(described, link=LINK, machines=machines))


@contextmanager
def world_of(backend: str, needs: Needs, **cloud: Any) -> Iterator[tuple[World, list[Span]]]:
    spans: list[Span] = []
    with BACKENDS[backend](several(backend, **cloud), needs, NO_INPUTS, spans.append, lambda what: None) as world:
        yield world, spans


@BACKEND
def test_a_world_opens_the_machines_that_are_needed(backend: str) -> None:
    needs = {"cloud": KvInPages(prompts=(8,), output=2, pages=1), "phone.1": NoKv()}
    with world_of(backend, needs) as (world, _):
        assert list(world.machines) == [DEVICE, "cloud", "phone.1"]
        assert len({id(machine.env) for machine in world.machines.values()}) == 1
        assert len({id(machine.memory) for machine in world.machines.values()}) == 3
        # Weights of its own model lie in each machine's memory, with what its engine takes.
        assert world.machines["cloud"].memory.used_bytes == engine_bytes(several(backend), "cloud")


def test_steps_are_not_foreseen_where_other_machines_may_interfere() -> None:
    scenario = several("sim")
    needs = WORKLOADS["decode"].flow(scenario, WORKLOADS["decode"].systems["kvswap"], lambda done, of: None).needs
    with world_of("sim", needs) as (alone, _), world_of("sim", {**needs, "cloud": NoKv()}) as (together, _):
        assert alone.foresight is not None
        assert together.foresight is None


@BACKEND
def test_machines_work_beside_each_other(backend: str) -> None:
    needs = dict.fromkeys((DEVICE, "cloud"), KvInPages(prompts=(8,), output=2, pages=1))
    with world_of(backend, needs) as (world, spans):
        env, done = world.machine.env, []
        for machine in world.machines.values():
            layers = LIVE_MODEL["layers"] if machine is not world.machine else several(backend).model.layers
            passed: tuple[Any, ...] = ()
            for layer in range(layers):
                passed = (machine.submit(PrefillLayer(1, 8, layer, Batch((0,))), after=passed),)
            said = machine.submit(OutputHead(1, of=Batch((0,))), after=passed)
            done.append(machine.submit(DecodeStep(1, 8, Batch((0,))), after=(said,)))
        env.run(until=env.all_of(done))
        main = {DEVICE: several(backend).device.main, "cloud": "cloud/cpu"}
        counts = {name: sum(span.resource == resource for span in spans) for name, resource in main.items()}
        assert counts == {DEVICE: several(backend).model.layers + 2, "cloud": LIVE_MODEL["layers"] + 2}


@BACKEND
def test_messages_cross_the_links_of_both_ends(backend: str) -> None:
    """1,000 bytes up at 10 kB/s, down at 100 kB/s, and half of both round trips: 0.12 s at least, in either world."""
    with world_of(backend, {"phone.0": NoKv(), "phone.1": NoKv()}) as (world, spans):
        env = world.machine.env
        first, second = (world.machines[name] for name in ("phone.0", "phone.1"))
        channel, heard = first.open("phone.1"), second.open("phone.0")
        channel.send(["a", 1], 1000)
        channel.send(["b", 2], 1000)
        assert env.run(until=heard.receive()) == ["a", 1]
        assert env.now >= 0.12
        # The second was sent behind the first, not after it had arrived.
        assert env.run(until=heard.receive()) == ["b", 2]
        assert {span.resource for span in spans} == {"phone.0/uplink", "phone.1/link"}
        up = [span for span in spans if span.resource == "phone.0/uplink"]
        assert up[1].start_s == up[0].end_s
        assert sum(span.n_bytes for span in spans) == 4000
        # Who receives observes how fast.
        facts = second.observe(10.0)
        assert facts.goodput_bytes_per_s == pytest.approx(100e3, rel=0.2)
        assert facts.link_utilisation > 0


@BACKEND
def test_a_link_that_ends_loses_what_it_carries(backend: str, tmp_path: Path) -> None:
    write_trace(
        tmp_path / "short.csv", StoredTrace("bandwidth", RateTrace(np.array([0, 0.05]), np.array([1e4]), "end"))
    )
    ends = {"trace": str(tmp_path / "short.csv"), "on_end": "end"}
    with world_of(backend, {"cloud": NoKv()}, link=ends) as (world, _):
        env, channel = world.machine.env, world.machines["cloud"].open(DEVICE)
        with pytest.raises(LinkDown, match="the link's trace ends"):
            env.run(until=channel.send("too long", 10_000))
        with pytest.raises(LinkDown):
            env.run(until=channel.send("too late", 1))


@BACKEND
def test_a_cloud_without_a_link_fetches_nothing(backend: str) -> None:
    needs = {"cloud": ContextsInCloud(codec="huffman")}
    with pytest.raises(InputError, match=r"machines\.cloud\.link: is missing"), world_of(backend, needs):
        pass


@BACKEND
def test_a_machine_whose_model_does_not_fit_stops_the_run(backend: str) -> None:
    small = {"extends": "laptop-cpu", "memory": {"capacity_bytes": "0.2 MB", "reserved_bytes": "0 B"}}
    with world_of(backend, {"cloud": NoKv()}, device=small) as (world, _):
        assert isinstance(world.weights_refused, Refused)


@BACKEND
def test_memory_beside_the_device_is_a_pool_of_its_own(backend: str) -> None:
    beside = {"unified": False, "copy_bytes_per_s": "10 GB/s", "host_capacity_bytes": "3 GB"}
    with world_of(backend, {"cloud": NoKv()}, device={"extends": "laptop-cpu", "memory": beside}) as (world, _):
        cloud = world.machines["cloud"]
        assert cloud.memory_of("host") is not cloud.memory
        assert cloud.memory_of("host").capacity_bytes == 3e9
        assert world.machine.memory_of("host") is world.machine.memory


@BACKEND
def test_needs_of_a_machine_do_not_hang_on_the_kind_of_workload(backend: str) -> None:
    """The device fetches contexts, a cloud keeps KV in pages: together they are no kind of workload that there is."""
    cloud = {"device": "laptop-cpu", "model": LIVE_MODEL}
    scenario = load_scenario(changed(DESCRIBED[backend]["context-reuse"], machines={"cloud": cloud}))
    needs: Needs = {DEVICE: ContextsInCloud(codec="huffman"), "cloud": KvInPages(prompts=(8,), output=2, pages=1)}
    with BACKENDS[backend](scenario, needs, NO_INPUTS, lambda span: None, lambda what: None) as world:
        stored, env = world.content.stored(0), world.machine.env
        chunk = Chunks(0, (0,), float(stored.encoding.encoded_bytes[0].flat[0]))
        fetched = world.machine.fetch(chunk, request=0)
        prefilled = world.machines["cloud"].submit(PrefillLayer(1, 8, 0, Batch((0,))))
        env.run(until=env.all_of((fetched, prefilled)))
        channel, heard = world.machine.open("cloud"), world.machines["cloud"].open(DEVICE)
        channel.send("done", 4)
        assert env.run(until=heard.receive()) == "done"
