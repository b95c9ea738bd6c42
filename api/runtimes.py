"""What a run might come to on other software than the one that it assumes."""

from collections.abc import Iterable

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.repeats import Metrics
from kvferry.api.repeats import Watch
from kvferry.pipelines.decoding.runtimes import others
from kvferry.pipelines.record import Run
from kvferry.specs.scenario import Scenario


def range_note(over: Iterable[str]) -> str:
    """What ranges over runtimes of these names mean, for users."""
    return f"range: what it comes to on the known runtimes, from the slowest to the ideal ({', '.join(sorted(over))})"


def on_other_runtimes(scenario: Scenario, run: Run, watch: Watch) -> dict[str, Metrics]:
    """The figures of a finished run on each of the other known runtimes that bound its own, by their names, where its
    own is only assumed; empty elsewhere, and of real runs. Those on which it does not finish are left out."""
    from kvferry.pipelines.run import run_scenario

    if scenario.backend != "sim" or run.outcome != "done":
        return {}
    found: dict[str, Metrics] = {}
    for other in others(scenario):
        assert other.runtime is not None
        with watch(f"{scenario.name}: {scenario.system} on runtime {other.runtime.name}") as progress:
            there = run_scenario(other, progress)
        if there.outcome == "done":
            found[other.runtime.name] = metrics_for(other, there)
    return found
