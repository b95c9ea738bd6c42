"""The runtime that a batch decodes on: named, fitted on the device, or assumed; and the others that it might be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_runtime
from kvferry.specs.device import DeviceSpec
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    from kvferry.pipelines.decoding.systems import DecodeSystem

# The runtime of a system whose paper has no prototype here, on a device where nothing was fitted.
_USUAL = "kvswap-prototype"
# The runtime of layers that are launched kernel by kernel from KV in the processor's memory, whatever paper the system
# is of: the one fitted on such systems (full-flash, full-eager). Others were fitted on KV that lies elsewhere.
_IN_MEMORY = "specontext-prototype"


@lru_cache(maxsize=1)
def known_runtimes() -> tuple[RuntimeSpec, ...]:
    """Returns the bundled runtimes, by name."""
    return tuple(load_runtime(name) for name in names("runtime"))


@runtime_checkable
class Answers(Protocol):
    """A system that decodes with another, which has a name."""

    @property
    def decode(self) -> str: ...

    @property
    def decoding(self) -> DecodeSystem: ...


@dataclass(frozen=True)
class Runtime:
    """The runtime of a scenario under a system, and whether it is only assumed there: no measurement of this system on
    this device stands behind its numbers, and nobody named it."""

    spec: RuntimeSpec
    assumed: bool
    # All KV is in the processor's memory: what it takes is for layers that are launched kernel by kernel.
    in_memory: bool = False

    @property
    def what(self) -> str:
        """Says to users what it takes time for."""
        if self.in_memory:
            return "what software takes to launch layers kernel by kernel"
        return "what software takes to manage KV outside the processor's memory"

    def provenance(self, device: DeviceSpec) -> dict[str, Any]:
        """Returns what a result says of it: name, whether it is assumed, what its times are multiplied with,
        sources."""
        spec = self.spec
        return {"name": spec.name, "assumed": self.assumed, "scale": spec.scale(device), "sources": dict(spec.sources)}

    def about(self, device: DeviceSpec) -> str:
        """Says to users where its times are from."""
        scale, fitted = self.spec.scale(device), ", ".join(self.spec.devices)
        if device.name in self.spec.devices or not fitted:
            return self.spec.name
        by = "as they are" if scale == 1.0 else f"times {scale:.3g}, the ratio of both hosts' clocks"
        return f"{self.spec.name}, fitted on {fitted}, {by}"


def runtime_of(scenario: Scenario, system: DecodeSystem | None = None) -> Runtime | None:
    """Returns the runtime of the scenario's own system, unless another composition is given. None where the device's
    profile says what software takes, and for a system to which it makes no difference, as all KV stays in the
    processor's memory and whole steps are launched at once, or an engine says what launches take; and for workloads
    that do not decode from KV elsewhere."""
    if scenario.workload.kind not in ("decode", "session"):
        return None
    name, system = (scenario.system, system) if system is not None else _decodes(scenario)
    in_memory = system.roles.placement.away is None
    if in_memory and system.roles.attention.captured is not False:
        return None
    if scenario.runtime is not None:
        return Runtime(scenario.runtime, assumed=False, in_memory=in_memory)
    device, known = scenario.device, known_runtimes()
    if device.has_runtime or (in_memory and device.engine is not None and device.engine.eager):
        return None
    fitted = [one for one in known if device.name in one.devices]
    of_paper = [] if in_memory else [one for one in known if one.paper == system.paper]
    usual = [one for one in known if one.name == (_IN_MEMORY if in_memory else _USUAL)]
    spec = next(iter((*fitted, *of_paper, *usual)))
    return Runtime(spec, assumed=not (spec in fitted and name in spec.systems), in_memory=in_memory)


def _decodes(scenario: Scenario) -> tuple[str, DecodeSystem]:
    """Returns the decode system of a scenario by name, of a session the one that answers."""
    system = WORKLOADS[scenario.workload.kind].systems[scenario.system].with_policies(scenario.policy_values)
    if isinstance(system, Answers):
        return system.decode, system.decoding
    from kvferry.pipelines.decoding.systems import DecodeSystem

    assert isinstance(system, DecodeSystem)
    return scenario.system, system


def runtime_spec(scenario: Scenario, system: DecodeSystem) -> RuntimeSpec | None:
    """Returns what ``runtime_of`` finds, without how it is known."""
    found = runtime_of(scenario, system)
    return None if found is None else found.spec


def beyond_the_rows(runtime: RuntimeSpec | None, slots: int) -> list[str]:
    """Says to users that more slots are searched than the runtime was fitted on."""
    if runtime is None or not runtime.slot_s or runtime.most_slots is None or slots <= runtime.most_slots:
        return []
    return [
        f"what a search among {slots:,} slots takes is not known: it is taken to cost no more than among"
        f" {runtime.most_slots:,}, the most that {runtime.name} was fitted on"
    ]


def on_runtime(scenario: Scenario, system: DecodeSystem | None = None) -> Scenario:
    """Returns the scenario on a device that takes what its runtime takes."""
    runtime = runtime_of(scenario, system)
    return (
        scenario if runtime is None else scenario.model_copy(update={"device": runtime.spec.laid_over(scenario.device)})
    )


def others(scenario: Scenario) -> Sequence[Scenario]:
    """Returns, where the runtime is only assumed, the scenario on each known runtime that it might be, but for runtimes
    whose every cost lies between the costs of two others. Empty where it is no assumption."""
    runtime = runtime_of(scenario)
    if runtime is None or not runtime.assumed:
        return ()
    by_costs = {one.on(scenario.device).costs: one for one in (runtime.spec, *known_runtimes())}
    ends = [one for costs, one in by_costs.items() if not _between(costs, [*by_costs])]
    own = runtime.spec.on(scenario.device).costs
    return [scenario.model_copy(update={"runtime": one}) for one in ends if one.on(scenario.device).costs != own]


def _between(costs: tuple[float, ...], all_costs: Sequence[tuple[float, ...]]) -> bool:
    rest = [one for one in all_costs if one != costs]
    below = any(all(a <= b for a, b in zip(one, costs, strict=True)) for one in rest)
    return below and any(all(a >= b for a, b in zip(one, costs, strict=True)) for one in rest)
