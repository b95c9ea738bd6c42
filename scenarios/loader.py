"""Scenarios from YAML and back: loading, dumping, hashing, and the schema for editors."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from kvferry.scenarios.engine_hardware import engine_complaints
from kvferry.scenarios.faults import complaints_of, input_error
from kvferry.scenarios.named_files import content_digest, named_files
from kvferry.scenarios.resolve import Complaint, extended, overridden, read_tree, with_parts
from kvferry.scenarios.weights_of_file import with_weights_of_file
from kvferry.specs.assist import AssistSpec
from kvferry.specs.base import Spec
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError
from kvferry.specs.link import LinkSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.node import Node, Place, node_of
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import StorageSpec
from kvferry.traces.resolve import drawn_link, with_end

AnySpec = TypeVar("AnySpec", bound=Spec)
# Checks a valid scenario further, such as the names of its policies, and yields what is wrong.
Check = Callable[[Scenario], Iterable[Complaint]]


def load_scenario(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), check: Check | None = None
) -> Scenario:
    """The scenario that a bundled name, a path or a plain mapping describes, after ``a.b=c`` overrides.

    Raises InputError with one line per fault: FILE:LINE: key.path: what came and what would do.
    """
    return checked_scenario(*overridden(scenario_tree(source), overrides), check)


def scenario_tree(source: str | Path | Mapping[str, Any]) -> Node:
    """What a bundled name, a path or a plain mapping says, with what it extends laid under it. Raises InputError."""
    if isinstance(source, Mapping):
        return extended("scenario", node_of(dict(source), Place("(mapping)", None, Path.cwd())))
    tree = read_tree("scenario", str(source), Path.cwd())
    for key, what, command in (("space", "search", "search"), ("base", "study", "sweep")):
        if tree.child("workload") is None and tree.child(key) is not None:
            raise InputError(f"{tree.place}: {key}: this is a {what}: kvferry {command} {source}")
    return tree


def checked_scenario(tree: Node, complaints: Sequence[Complaint] = (), check: Check | None = None) -> Scenario:
    """The scenario of a resolved tree; `complaints` are what resolving it left. Raises InputError."""
    tree = with_weights_of_file(tree)
    scenario = _validated(Scenario, tree, [*complaints, *engine_complaints(tree)])
    try:
        scenario = _with_links_known(scenario)
    except InputError as error:
        raise input_error([Complaint(("link", "trace"), str(error))], tree) from None
    faults = list(check(scenario)) if check else []
    if faults:
        raise input_error(faults, tree)
    return scenario


def _with_links_known(scenario: Scenario) -> Scenario:
    """Returns the scenario with what its links leave to its seed and to their traces' files, as values that a file can
    have as well. Raises InputError."""
    changed: dict[str, Any] = {"link": _known_link(scenario.link, scenario.seed)}
    if scenario.machines:
        changed["machines"] = {
            name: machine
            if machine.link is None
            else machine.model_copy(update={"link": _known_link(machine.link, scenario.seed, place)})
            for place, (name, machine) in enumerate(scenario.machines.items())
        }
    if isinstance(scenario.workload, AssistSpec) and (networks := scenario.workload.networks):
        known = tuple(one.model_copy(update={"link": _with_ends(one.link)}) for one in networks)
        changed["workload"] = scenario.workload.model_copy(update={"networks": known})
    return scenario.model_copy(update=changed)


def _known_link(link: LinkSpec, seed: int, *place: int) -> LinkSpec:
    return _with_ends(link if link.drawn else drawn_link(link, seed, *place))


def _with_ends(link: LinkSpec) -> LinkSpec:
    try:
        link = with_end(link)
        return link if link.up is None else link.model_copy(update={"up": with_end(link.up)})
    except InputError:
        return link  # what checks the scenario says what is wrong with its trace


def load_device(reference: str) -> DeviceSpec:
    """A device by bundled name or path. Raises InputError."""
    return _validated(DeviceSpec, *with_parts(read_tree("device", reference, Path.cwd())))


def load_storage(reference: str) -> StorageSpec:
    """A storage device by bundled name or path. Raises InputError."""
    return _validated(StorageSpec, read_tree("storage", reference, Path.cwd()))


def load_runtime(reference: str) -> RuntimeSpec:
    """A runtime by bundled name or path. Raises InputError."""
    return _validated(RuntimeSpec, read_tree("runtime", reference, Path.cwd()))


def load_model(reference: str) -> ModelSpec:
    """A model by bundled name or path. Raises InputError."""
    return _validated(ModelSpec, read_tree("model", reference, Path.cwd()))


def _validated(spec: type[AnySpec], tree: Node, complaints: Sequence[Complaint] = ()) -> AnySpec:
    try:
        valid = spec.model_validate(tree.plain(), context={"from_file": True})
    except ValidationError as error:
        unresolved = {complaint.key for complaint in complaints}
        found = complaints_of(error, spec)
        raise input_error([*complaints, *(f for f in found if f.key not in unresolved)], tree) from None
    if complaints:
        raise input_error(complaints, tree)
    return valid


def dump_scenario(scenario: Scenario) -> dict[str, Any]:
    """The resolved scenario as plain values that ``load_scenario`` reads back to an equal one."""
    dumped: dict[str, Any] = scenario.model_dump(mode="json", by_alias=True, exclude=scenario.unsaid)
    return dumped


def dumped_scenario(dumped: Mapping[str, Any]) -> Scenario:
    """The scenario that ``dump_scenario`` made this of. Faster than ``load_scenario``, as every name is resolved: its
    faults have no places. Raises InputError."""
    try:
        return Scenario.model_validate(dumped, context={"from_file": True})
    except ValidationError:
        return _validated(Scenario, node_of(dumped, Place("(dumped)", None, Path.cwd())))


def dump_yaml(scenario: Scenario) -> str:
    """The same as YAML text, to be kept beside a run's results."""
    import yaml

    return yaml.safe_dump(dump_scenario(scenario), sort_keys=False, allow_unicode=True, width=120)


def scenario_hash(scenario: Scenario) -> str:
    """SHA-256, in hex, of all that the run depends on; the same in every process.

    Files that the scenario names by path count with their content, so that a moved file changes nothing and an
    edited one does. Bundled and fetched traces count with their name.
    """
    dumped = dump_scenario(scenario)
    for (*section, last), path in named_files(dumped).items():
        holder = dumped
        for key in section:
            holder = holder[key]
        holder[last] = f"sha256:{content_digest(path)}"
    text = json.dumps(dumped, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
