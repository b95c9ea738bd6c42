"""A run as a paper meters it: the energy of requests, from their submission to the end of their answers."""

from dataclasses import replace

from kvferry.analysis.metrics import finish_s
from kvferry.analysis.occupancy import union
from kvferry.machine.span import Span
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario


def run_in_flight(scenario: Scenario) -> Run:
    """The scenario's run, its energy without what the idle device draws while no request is in flight."""
    run = run_scenario(scenario)
    device = scenario.device
    idle_w = {"base": device.base_w, "network": device.network.idle_w}
    idle_w |= {name: processor.idle_w for name, processor in device.processors.items()}
    starts, ends = union(Span("request", "", r.arrival_s, finish_s(r) or r.arrival_s) for r in run.requests)
    idle_s = run.duration_s - float((ends - starts).sum())
    energy_j = {part: energy_j - idle_w.get(part, 0.0) * idle_s for part, energy_j in run.energy_j.items()}
    return replace(run, energy_j=energy_j)
