"""What a finished run is reported as, on the command line and in its folder."""

from kvferry.analysis.envelope import Envelope, envelope_of, provenance_of
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.remarks import why_no_energy
from kvferry.pipelines.decoding.runtimes import runtime_of
from kvferry.pipelines.record import Run
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import with_unit


def envelope_for(scenario: Scenario, run: Run) -> Envelope:
    """The JSON object of one run: outcome, metrics, scenario, system, seed, versions, provenance."""
    link = scenario.link
    runtime = runtime_of(scenario)
    software = {} if runtime is None else {"runtime": runtime.provenance(scenario.device)}
    source = link.trace if link.rate_bytes_per_s is None else with_unit(link.rate_bytes_per_s, "rate")
    return envelope_of(
        run,
        metrics_for(scenario, run),
        scenario=scenario.name,
        system=scenario.system,
        seed=scenario.seed,
        provenance=provenance_of(scenario.device, scenario.model, link=str(source), **software),
        not_counted=why_no_energy(scenario, run),
    )
