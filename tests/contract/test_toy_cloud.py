"""A toy of P/D-Device, in every world: devices prefill a prompt while a cloud already sends them its first tokens.

The kind of workload below is all that it takes: its worlds open a cloud and devices of one profile, each on a link.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tiny import DECODING, LIVE_DECODING, LIVE_MODEL, changed
from worlds import fake_world

from kvferry.analysis.envelope import envelope_of, to_json
from kvferry.backends.needs import KvInPages, Needs
from kvferry.backends.world import DEVICE, NO_INPUTS, Inputs, OpenWorld, World
from kvferry.machine.machine import Machine
from kvferry.machine.ops import Batch, DecodeStep, OutputHead, PrefillLayer
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.pipelines.run import BACKENDS, run_scenario
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Left, Process, Progress, System
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import load_scenario
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

PROMPT, TOKENS, PROMPT_BYTES, TOKEN_BYTES = 24, 3, 1000, 10


def begin(machine: Machine, layers: int, of: Batch) -> Process:
    """Prefill a prompt on a machine, as far as its first token."""
    done: tuple[Any, ...] = ()
    for layer in range(layers):
        done = (machine.submit(PrefillLayer(1, PROMPT, layer, of), after=done),)
    yield machine.submit(OutputHead(1, of=of), after=done)


def serve(cloud: Machine, device: str, sequence: int, layers: int) -> Process:
    """The cloud's role for one device: a token after every step, until the device needs no more."""
    channel, of = cloud.open(device), Batch((sequence,))
    assert (yield channel.receive()) == "prompt"
    yield from begin(cloud, layers, of)
    for n in range(TOKENS):
        yield channel.send([device, n], TOKEN_BYTES)
        yield cloud.submit(DecodeStep(1, PROMPT + n, of))
    channel.close()


@dataclass
class Toy:
    """A Flow."""

    scenario: Scenario
    # What each device was sent, token by token, and when.
    got: dict[str, list[list[object]]] = field(default_factory=dict)
    times_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def devices(self) -> list[str]:
        return [name for name in self.scenario.machine_names if name != "cloud"]

    @property
    def needs(self) -> Needs:
        here = KvInPages(prompts=(PROMPT,), output=TOKENS, pages=4)
        there = KvInPages(prompts=(PROMPT,) * len(self.devices), output=TOKENS + 1, pages=4 * len(self.devices))
        return {**dict.fromkeys(self.devices, here), "cloud": there}

    def ask(self, device: Machine, name: str) -> Process:
        """A device's role: prefill beside what the cloud sends."""
        channel, layers = device.open("cloud"), self.scenario.seen_by(name).model.layers
        channel.send("prompt", PROMPT_BYTES)
        own = device.env.process(begin(device, layers, Batch((0,))))
        while (token := (yield channel.receive())) is not None:
            self.got.setdefault(name, []).append(token)
            self.times_s.setdefault(name, []).append(device.env.now)
        yield own
        channel.close()

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        env, cloud = world.machine.env, world.machines["cloud"]
        layers = self.scenario.seen_by("cloud").model.layers
        roles = [self.ask(world.machines[name], name) for name in self.devices]
        roles += [serve(cloud, name, n, layers) for n, name in enumerate(self.devices)]
        yield env.all_of([env.process(role) for role in roles])

    def left(self, world: World, end: Totals) -> Left:
        times = [tuple(times_s) for times_s in self.times_s.values()]
        return Left(
            requests=[
                RequestRecord(request=n, arrival_s=0.0, first_token_s=times_s[0], token_times_s=times_s)
                for n, times_s in enumerate(times)
            ]
        )

    def kept(self) -> str:
        return f"{sum(map(len, self.got.values()))} tokens"


class ToyKind:
    """A WorkloadKind."""

    headline = "ttft_s"

    def of_many_machines(self, scenario: Scenario) -> bool:
        return True

    flows: tuple[Toy, ...] = ()

    @property
    def systems(self) -> Mapping[str, System]:
        return DECODE_SYSTEMS

    def faults(self, scenario: Scenario, system: System) -> Iterator[Complaint]:
        return iter(())

    def medium(self, scenario: Scenario) -> str:
        return "channels"

    def remark(self, scenario: Scenario) -> str | None:
        return None

    def flow(self, scenario: Scenario, system: System, progress: Progress, inputs: Inputs = NO_INPUTS) -> Toy:
        self.flows = (*self.flows, Toy(scenario))
        return self.flows[-1]


LINK = {"rate": "800 kbit/s", "rtt": "10 ms"}
SIM = changed(
    DECODING,
    link=LINK,
    machines={
        "cloud": {"device": "laptop-cpu", "model": "tiny"},
        "phone": {"device": DECODING["device"], "model": "tiny", "link": LINK, "count": 2},
    },
)
REAL = {"device": "laptop-cpu", "model": LIVE_MODEL}
LIVE = changed(LIVE_DECODING, link=LINK, machines={"cloud": REAL, "phone": {**REAL, "link": LINK, "count": 2}})
WORLDS: dict[str, tuple[dict[str, Any], OpenWorld]] = {
    "fake": (SIM, fake_world),
    "sim": (SIM, BACKENDS["sim"]),
    "torch": (LIVE, BACKENDS["torch"]),
}
IN_EVERY_WORLD = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.torch] if name == "torch" else []) for name in WORLDS]
)


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> ToyKind:
    monkeypatch.setitem(WORKLOADS, "decode", ToyKind())
    return WORKLOADS["decode"]  # type: ignore[return-value]


def carried_out(name: str) -> Run:
    described, open_world = WORLDS[name]
    return run_scenario(load_scenario(described), open_world=open_world)


@IN_EVERY_WORLD
def test_a_cloud_helps_many_devices(name: str, kind: ToyKind) -> None:
    run = carried_out(name)
    (toy,) = kind.flows
    assert run.outcome == "done"
    assert toy.devices == [DEVICE, "phone.0", "phone.1"]
    assert toy.got == {device: [[device, n] for n in range(TOKENS)] for device in toy.devices}
    # A prompt up and tokens down, and half a round trip either way: as the link says, in virtual and in wall time.
    assert all(record.first_token_s >= PROMPT_BYTES / 100e3 + 0.01 for record in run.requests)


@pytest.mark.parametrize("name", ["sim", pytest.param("torch", marks=[pytest.mark.torch])])
def test_spans_tell_machines_apart(name: str, kind: ToyKind) -> None:
    run = carried_out(name)
    tally, (toy,) = run.tally, kind.flows
    assert tally.bytes_of("uplink", "Message") == tally.bytes_of("phone.1/uplink", "Message") == PROMPT_BYTES
    assert tally.bytes_of("link", "Message") == tally.bytes_of("phone.1/link", "Message") == TOKENS * TOKEN_BYTES
    # Energy and memory are the device's, and those of others are told apart as well.
    assert list(run.machines) == [*toy.needs][1:]
    assert all(one.memory_peak_bytes > 0 for one in run.machines.values())
    assert all(one.energy_j.keys() >= run.energy_j.keys() - {"gpu", "npu", "storage"} for one in run.machines.values())
    found = envelope_of(run, {}, scenario="toy", system="toy", seed=0)["machines"]
    assert found["phone.1"]["memory_peak_bytes"] == run.machines["phone.1"].memory_peak_bytes
    assert json.loads(to_json(found)).keys() == run.machines.keys()
    # The cloud has no link, and a processor of its own.
    resources = {resource for resource, _ in tally.busy_s}
    assert {"cloud/cpu", "phone.0/link"} <= resources
    assert "cloud/link" not in resources


@IN_EVERY_WORLD
def test_a_machine_that_the_scenario_lacks_is_named(name: str, kind: ToyKind) -> None:
    described, open_world = WORLDS[name]
    alone = load_scenario(described, ["machines.cloud=null"])
    with pytest.raises(InputError, match="machines: unknown machine 'cloud'; known: device, phone.0 to phone.1"):
        run_scenario(alone, open_world=open_world)
