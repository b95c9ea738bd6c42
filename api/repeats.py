"""Scenarios run several times, in turns: a machine that warms up or is busy for a while meets all systems alike."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from kvferry.backends.world import Say
from kvferry.pipelines.record import Run
from kvferry.pipelines.workload import Progress
from kvferry.specs.errors import InputError, KvferryError, quoted
from kvferry.specs.scenario import Scenario

# Entered with what is being done, gives what is called with how much is done, of how much.
Watch = Callable[[str], AbstractContextManager[Progress]]


def unwatched(doing: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, of: None)


@dataclass
class Carried:
    """Finished runs by system, why systems failed, and the run that Ctrl-C ended."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: Run | None = None


def check_runs(scenario: Scenario, runs: int) -> None:
    """Raises InputError for several runs in a world where all are the same."""
    if runs < 1:
        raise InputError(f"runs: {runs} is not at least 1")
    if runs > 1 and scenario.backend == "sim":
        raise InputError(
            f"--runs {runs}: the modelled world gives the same every time; give another --seed, or run for real with "
            "--set backend=torch"
        )


def carry_out(turns: Sequence[Mapping[str, Scenario]], watch: Watch, say: Say, *, keep_going: bool = True) -> Carried:
    """Every scenario of a turn once, by system, then those of the next turn. A system that fails, whatever the error,
    is not tried again; what it finished is kept. Raises its error instead unless `keep_going`."""
    from kvferry.pipelines.run import run_scenario

    carried = Carried()
    for turn, scenarios in enumerate(turns):
        for name, scenario in scenarios.items():
            if name in carried.failed:
                continue
            of = f" (run {turn + 1} of {len(turns)})" if len(turns) > 1 else ""
            try:
                with watch(f"{scenario.name}: {name}{of}") as progress:
                    run = run_scenario(scenario, progress, say=say)
            except KvferryError as error:
                if not keep_going:
                    raise
                carried.failed[name] = str(error)
                continue
            except Exception as error:
                if not keep_going:
                    raise
                notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
                carried.failed[name] = quoted(f"{type(error).__name__}: {error}{notes}")
                continue
            except KeyboardInterrupt:
                carried.interrupted = Run(outcome="interrupted")
                return carried
            if run.interrupted:
                carried.interrupted = run
                return carried
            carried.runs.setdefault(name, []).append(run)
    return carried
