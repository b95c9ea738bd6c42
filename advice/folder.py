"""The folder of an answer: the scenario that won, what was found, the study behind it, its pictures and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from kvferry.advice.answer import Answer
from kvferry.advice.fit import Fit
from kvferry.advice.page import QUESTIONS, page
from kvferry.advice.pictures import draw_map, over_contexts
from kvferry.advice.question import Question
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
from kvferry.specs.errors import KvferryError
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    import pandas as pd

SCENARIO, FOUND, PAGE = "scenario.yaml", "advice.json", "report.html"
_PLOTS, _ALONE, _STUDIES = "plots", "alone", ("contexts", "map-link", "map-memory")


def answers(folder: Path, question: Question) -> bool:
    """Whether the folder has an answer to just this question."""
    return _asked(folder) == question.identity


def _asked(folder: Path) -> Any:
    """The question whose answer a folder has; None: it has none, or one of an earlier version."""
    try:
        return json.loads((folder / FOUND).read_text(encoding="utf-8")).get("question")
    except (OSError, ValueError, AttributeError):
        return None


def clear(folder: Path, question: Question) -> None:
    """Removes what an earlier answer left in a folder, so that nothing there is of another one: but for points of the
    same question, which its studies go on from. Raises KvferryError."""
    if _asked(folder) is None:
        return
    same = answers(folder, question)
    plots = [folder / _PLOTS / f"{name}.{kind}" for name in QUESTIONS for kind in ("png", "svg")]
    files = [FOUND, PAGE, *(f"{name}.yaml" for name in _STUDIES), f"{_ALONE}/{SCENARIO}"]
    try:
        for file in (*plots, *(folder / name for name in files)):
            file.unlink(missing_ok=True)
        for name in () if same else _STUDIES:
            if (folder / name).is_dir() and not (folder / name).is_symlink():
                rmtree(folder / name)
        for place in (folder / _PLOTS, folder / _ALONE):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
    except OSError as error:
        raise KvferryError(f"{folder}: what an earlier answer left cannot be removed: {error.strerror}") from error


def write_scenario(best: Trial, folder: Path) -> None:
    """Writes the scenario, which ``kvferry run`` carries out. Raises KvferryError."""
    assert best.scenario is not None
    write_file(folder / SCENARIO, dump_yaml(best.scenario).encode())


def write_answer(found: Answer, folder: Path, drawn: Collection[Path] = ()) -> None:
    """Writes the answer as JSON, and the page with the pictures that were drawn for it. Raises KvferryError."""
    write_file(folder / FOUND, found.to_json().encode())
    pictures = {name: folder / _PLOTS / f"{name}.png" for name in QUESTIONS}
    write_file(folder / PAGE, page(found, {name: file for name, file in pictures.items() if file in drawn}).encode())


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
    drawn: Callable[[Sequence[Path]], None] = lambda files: None,
) -> list[str]:
    """Runs the contenders over contexts, and over contexts and a second axis, as far as there is time, and draws what
    is there; returns the studies that the time did not suffice for. `drawn` is called with files as they are drawn. Of
    a device that is helped the best composition without help is the base. Raises KeyboardInterrupt."""
    question = found.question
    of = contenders(question, found.ranked, tried)
    if not of or of[0].scenario is None:
        return []
    base = folder if of[0] is found.best else folder / _ALONE
    write_scenario(of[0], base)
    contexts, about = contexts_of(question, fit), f"{question.device.name}, {question.model_name}"
    losses = {label(one): one.composition.given_up for one in of}
    plots = folder / _PLOTS
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
        drawn(over_contexts(points, limits, plots, f"{about}{_not_run(points, contexts, len(of))}"))
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
            drawn(draw_map(question, Map(name, column, points), losses, says, plots, about))
    return late
