"""The folder of an answer: the scenario that won, what was found, the study behind it, its pictures and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.advice.answer import Answer
from kvferry.advice.fit import Fit
from kvferry.advice.page import page
from kvferry.advice.pictures import draw_map, over_contexts
from kvferry.advice.study import (
    CONTEXT,
    MEMORY,
    Map,
    contenders,
    contexts_of,
    every_other,
    label,
    memories_of,
    rates_of,
    run_file,
    study_file,
)
from kvferry.advice.trial import Trial
from kvferry.analysis.executors.executor import Executor
from kvferry.scenarios.loader import dump_yaml
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    import pandas as pd

SCENARIO, FOUND, PAGE = "scenario.yaml", "advice.json", "report.html"


def write_scenario(best: Trial, folder: Path) -> None:
    """Writes the scenario, which ``kvferry run`` carries out. Raises KvferryError."""
    assert best.scenario is not None
    write_file(folder / SCENARIO, dump_yaml(best.scenario).encode())


def write_answer(found: Answer, folder: Path) -> None:
    """Writes the answer as JSON, and the page with the pictures that are there. Raises KvferryError."""
    write_file(folder / FOUND, found.to_json().encode())
    pictures = {name: folder / "plots" / f"{name}.png" for name in ("ttft", "rate", "memory", "map-link", "map-memory")}
    write_file(folder / PAGE, page(found, {name: file for name, file in pictures.items() if file.exists()}).encode())


def _not_run(points: pd.DataFrame, contexts: Sequence[int], systems: int) -> str:
    """Says from which context on not all systems were run; "" where all were."""
    late = [one for one in contexts if (points["workload.context"] == one).sum() < systems]
    return f"; not all run from {min(late) / 1024:g} Ki" if late else ""


def write_study(
    found: Answer,
    tried: Sequence[Trial],
    fit: Fit,
    folder: Path,
    progress: Callable[[str, int, int], None],
    goes_on: Callable[[], bool],
    executor: Executor | str | None = None,
) -> list[str]:
    """Runs the contenders over contexts, and over contexts and a second axis, as far as there is time, and draws what
    is there; returns the studies that the time did not suffice for. Of a device that is helped the best composition
    without help is the base. Raises KeyboardInterrupt."""
    question = found.question
    of = contenders(question, found.ranked, tried)
    if not of or of[0].scenario is None:
        return []
    base = folder if of[0] is found.best else folder / "alone"
    write_scenario(of[0], base)
    contexts, about = contexts_of(question, fit), f"{question.device.name}, {question.model_name}"
    losses = {label(one): one.composition.given_up for one in of}
    plots = folder / "plots"
    points = run_file(
        study_file(question, of, {CONTEXT: contexts}, base, "contexts"),
        lambda done, n: progress("contexts", done, n), goes_on, executor,
    )  # fmt: skip
    memory = of[0].scenario.device.memory
    limits = {"the device leaves free": memory.free_bytes}
    if (granted := of[0].scenario.budget.memory_bytes) is not None:
        limits["granted"] = granted
    late = [] if len(points) == len(of) * len(contexts) else ["contexts"]
    if len(points) and (points["outcome"] == "done").any():
        over_contexts(points, limits, plots, f"{about}{_not_run(points, contexts, len(of))}")
    rates: list[Any] = [{"rate": rate} for rate in rates_of(of[0])] if question.linked else []
    memories: list[Any] = list(memories_of(of[0]))
    maps = [
        ("map-link", "link", "link.rate_bytes_per_s", rates, "rate of the link"),
        ("map-memory", MEMORY, "budget.memory_bytes", memories, "memory granted"),
    ]
    for name, key, column, values, says in maps:
        if not values:
            continue
        of_map = every_other(contexts)
        file = study_file(question, of, {CONTEXT: of_map, key: values}, base, name)
        if not goes_on():
            late.append(name)
            continue
        points = run_file(file, lambda done, n, name=name: progress(name, done, n), goes_on, executor)  # type: ignore[misc]
        late += [] if len(points) == len(of) * len(of_map) * len(values) else [name]
        if len(points):
            draw_map(question, Map(name, column, points), losses, says, plots, about)
    return late
