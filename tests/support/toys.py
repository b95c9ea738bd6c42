"""Ways of decoding that no scenario names, in every world: on a fake machine, in the modelled world, and in the real
one with the smallest model that comes with the project."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from fake_machine import FakeMachine
from tiny import tiny

from kvferry.backends.needs import KvOnStorage
from kvferry.backends.world import DEVICE, Inputs, World
from kvferry.machine.machine import Machine
from kvferry.machine.span import Span
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.run import BACKENDS
from kvferry.policies.decode.roles import Roles
from kvferry.policies.ledger import Ledger
from kvferry.scenarios.loader import load_model
from kvferry.specs.scenario import Scenario

MODEL = "byte-small"


@dataclass(frozen=True)
class Toy:
    """A batch that has decoded, and what it ran on; ``world`` is None for the fake machine."""

    machine: Machine
    decode: LockStepDecode
    world: World | None
    spans: list[Span]

    @property
    def runner(self) -> Any:
        """Of the real world; None in the others."""
        return getattr(getattr(self.world, "parts", None), "runner", None)


def toy_plan(roles: Roles, *, free_bytes: float = 1e9, **sizes: int) -> DecodePlan:
    """The sizes of a toy, with so many bytes per sequence for KV beside what it manages."""
    plan = plan_of(roles, load_model(MODEL), budget_bytes=1e9, **sizes)
    managing_bytes = Ledger(plan.managed.holdings, plan.sequences).n_bytes(plan.most_tokens) / plan.sequences
    return plan.within(managing_bytes + free_bytes)


def toy_scenario(backend: str, plan: DecodePlan) -> Scenario:
    """Of a device whose memory is not unified. Its system is not asked."""
    memory = {"unified": False, "capacity_bytes": "8 GB", "bytes_per_s": "20 GB/s", "copy_bytes_per_s": "10 GB/s"}
    workload = {"kind": "decode", "context": plan.context, "batch": plan.sequences, "output": plan.output}
    return tiny(
        {
            "name": "toy",
            "backend": backend,
            "system": "kvswap",
            "device": {"extends": "laptop-cpu", "storage": "nvme", "memory": memory},
            "model": MODEL,
            "link": {"rate": "1 MB/s"},
            "workload": workload,
            "budget": {"kv_share": 0.5},
            "live": {"paced": False},
        }
    )


@contextmanager
def opened(backend: str, plan: DecodePlan, inputs: Inputs, spans: list[Span]) -> Iterator[tuple[Machine, World | None]]:
    if backend == "fake":
        yield FakeMachine(bytes_per_s=1e6, capacity_bytes=1e12, unified=False), None
        return
    needs = {DEVICE: KvOnStorage(sizes=plan, sequences=plan.sequences)}
    with BACKENDS[backend](toy_scenario(backend, plan), needs, inputs, spans.append, lambda what: None) as world:
        yield world.machine, world


@contextmanager
def decoded(
    backend: str, plan: DecodePlan, inputs: Inputs | None = None, on_token: Callable[[LockStepDecode], object] = id
) -> Iterator[Toy]:
    """The whole output decoded; the world stays open for as long as the block lasts. `on_token` is called with the
    batch under way after every token."""
    spans = list[Span]()
    with opened(backend, plan, inputs or Inputs(), spans) as (machine, world):
        decode = LockStepDecode(machine, plan, lambda tokens: on_token(decode))
        machine.env.run(until=machine.env.process(decode.run(plan.output)))
        yield Toy(machine, decode, world, spans)


RunToy = Callable[..., AbstractContextManager[Toy]]
