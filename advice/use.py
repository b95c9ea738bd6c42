"""What a device is used for: turns of conversations, and the figure by which a choice is judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvferry.scenarios.faults import complaints_of, input_error
from kvferry.scenarios.resolve import read_tree
from kvferry.specs.use import UseSpec


@dataclass(frozen=True)
class Use:
    """A use, and its workload as the file says it, with units."""

    spec: UseSpec
    workload: Mapping[str, Any]


def load_use(reference: str) -> Use:
    """Returns a bundled use by name, or the one in a file. Raises InputError with a line per fault."""
    tree = read_tree("use", reference, Path.cwd())
    try:
        spec = UseSpec.model_validate(tree.plain(), context={"from_file": True})
    except ValidationError as error:
        raise input_error(complaints_of(error, UseSpec), tree) from None
    return Use(spec, tree.plain()["workload"])
