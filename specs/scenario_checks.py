"""Whether the parts of a scenario fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry.specs.base import BadKey
from kvferry.specs.machine import MOST_MACHINES
from kvferry.specs.session import SessionSpec
from kvferry.specs.workload import DecodeSpec

if TYPE_CHECKING:
    from kvferry.specs.scenario import Scenario


def check(scenario: Scenario) -> None:
    """Raises BadKey for the first part that does not."""
    scenario.workload.check_size(scenario.model, per_head=scenario.coupling == "per_head")
    _check_window(scenario)
    _check_weights(scenario)
    _check_processors(scenario)
    _check_memory(scenario)
    _check_machines(scenario)


def _check_window(scenario: Scenario) -> None:
    models = {f"machines.{name}.model": machine.model for name, machine in scenario.machines.items()}
    real = scenario.backend != "sim"
    if real or not isinstance(scenario.workload, DecodeSpec | SessionSpec):
        # Which systems of these model windows, they say themselves.
        models = {"model": scenario.model, **models}
    which = "a real run has none that are longer" if real else f"{scenario.workload.kind} has none that are longer"
    would = "--set backend=sim" if real else "workload.kind decode or session"
    for key, model in models.items():
        if what := model.beyond_window(scenario.workload.longest_tokens):
            would += " with KV in memory" + (" (--system vllm)" if scenario.workload.kind == "decode" else "")
            raise BadKey(key, f"{what}; {which}: shorter ones (workload.context) would do, or {would}")


def _check_weights(scenario: Scenario) -> None:
    engine, weights = scenario.device.engine, scenario.model.weights
    if engine is not None and weights is not None and engine.weights and weights not in engine.weights:
        own = scenario.precision is None or scenario.precision.weights is None
        key = "model.weights" if own else "precision.weights"
        raise BadKey(key, f"{engine.name} does not read {weights}; it reads {', '.join(engine.weights)}")


def _check_processors(scenario: Scenario) -> None:
    of_machines = {f"machines.{name}.device": machine.device for name, machine in scenario.machines.items()}
    for key, device in {"device": scenario.device, **of_machines}.items():
        if device.main not in device.processors:
            has = f"it has {', '.join(device.processors)}"
            raise BadKey(f"{key}.main", f"{device.main!r} is no processor of this device; {has}")
    known = ", ".join(scenario.device.processors)
    if scenario.processor is not None and scenario.processor not in scenario.device.processors:
        raise BadKey("processor", f"{scenario.processor!r} is no processor of the device; it has {known}")
    wanted = scenario.load.processor if scenario.load else None
    if wanted is not None and wanted not in scenario.device.processors:
        raise BadKey("load.processor", f"{wanted!r} is no processor of the device; it has {known}")


def _check_memory(scenario: Scenario) -> None:
    budget, free = scenario.budget.memory_bytes, scenario.device.memory.free_bytes
    if budget is not None and budget > free:
        what = f"{budget / 1e9:.4g} GB is more than the {free / 1e9:.4g} GB that the device leaves free"
        raise BadKey("budget.memory", what)


def _check_machines(scenario: Scenario) -> None:
    machines = sum(machine.count or 1 for machine in scenario.machines.values())
    if machines > MOST_MACHINES:
        raise BadKey("machines", f"are {machines:,} with all groups; at most {MOST_MACHINES:,} will do")
