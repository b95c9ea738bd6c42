"""The folder of an answer: the scenario that won, what was found, the study behind it, its pictures and a page."""

from pathlib import Path

from kvferry.advice.answer import Answer
from kvferry.scenarios.loader import dump_yaml
from kvferry.system.whole_file import write_file

SCENARIO, FOUND = "scenario.yaml", "advice.json"


def write_answer(found: Answer, folder: Path) -> None:
    """Writes the scenario, which ``kvferry run`` carries out, and the answer as JSON. Raises KvferryError."""
    assert found.best.scenario is not None
    write_file(folder / SCENARIO, dump_yaml(found.best.scenario).encode())
    write_file(folder / FOUND, found.to_json().encode())
