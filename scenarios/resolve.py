"""Resolves names: `extends`, devices, storage, models and paths become the content of the files they name."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvferry.scenarios.gguf_file import gguf_at, gguf_node
from kvferry.scenarios.hugging_face import config_at, model_node
from kvferry.scenarios.library import locate, looks_like_a_path, names
from kvferry.scenarios.sources import laid_over, with_value
from kvferry.specs.document import MOST_DEPTH, expanded, parse_document, read_document, regular_file, shown
from kvferry.specs.errors import InputError
from kvferry.specs.node import Node, Place, brief, node_of

MOST_EXTENSIONS = 10


@dataclass(frozen=True)
class Complaint:
    """A fault of one key. `at_key`: the key itself is wrong, not its value. `idle`: the key means nothing to this
    system, and may mean something to others."""

    key: tuple[str | int, ...]
    what: str
    at_key: bool = False
    idle: bool = False


def read_tree(kind: str, reference: str, folder: Path) -> Node:
    """A named or given file of a kind (scenario, device, storage, model, runtime), with what it extends laid under it.

    Raises InputError.
    """
    if kind == "model" and reference not in names(kind):
        given = folder / expanded(reference)
        if (config := config_at(given)) is not None:
            return model_node(config)
        if (file := gguf_at(given)) is not None:
            return gguf_node(file)
    path = locate(kind, reference, folder)
    return extended(kind, read_document(path), (path,))


def extended(kind: str, node: Node, chain: tuple[Path, ...] = ()) -> Node:
    """A node with the file that its `extends` names laid under it, and so on. Raises InputError."""
    if not isinstance(node.value, dict):
        raise InputError(f"{node.place}: a {kind} is a mapping (key: value); what came is {brief(node.value)}")
    base_name = node.value.get("extends")
    if base_name is None:
        return node
    place = base_name.place
    if not isinstance(base_name.value, str):
        raise InputError(f"{place}: extends: {brief(base_name.value)} is not the name or path of a {kind}")
    try:
        path = locate(kind, base_name.value, place.folder)
    except InputError as error:
        raise InputError(f"{place}: extends: {error}") from None
    if path in chain:
        circle = " -> ".join(shown(file) for file in (*chain[chain.index(path) :], path))
        raise InputError(f"{place}: extends: a circle, {circle}; one of them must stand on its own")
    if len(chain) >= MOST_EXTENSIONS:
        raise InputError(f"{place}: extends: more than {MOST_EXTENSIONS} files deep")
    base = extended(kind, read_document(path), (*chain, path))
    own = {key: item for key, item in node.value.items() if key != "extends"}
    if kind != "scenario":
        return laid_over(replace(node, value=own), base)
    for part in ("device", "model"):
        mine, theirs = own.get(part), base.child(part)
        if mine is not None and theirs is not None and isinstance(mine.value, dict) and isinstance(theirs.value, dict):
            own[part] = laid_over(mine, theirs)
    kept = own_policies_only(base, own.get("system"))
    bases = base.bases if kept is base else (*base.bases, base)
    return replace(node, value=own, bases=bases).over(kept)


def own_policies_only(base: Node, system: Node | None) -> Node:
    """A scenario on which another one builds that says `system`: without its `policies`, if these are of another
    system, the one that it names itself."""
    own = base.child("system")
    if system is None or own is None or system.value == own.value or base.child("policies") is None:
        return base
    return replace(base, value={key: node for key, node in base.value.items() if key != "policies"})


def resolve(root: Node) -> tuple[Node, list[Complaint]]:
    """Names of devices, storage, models, the engine and the runtime become what their files say, of every machine;
    paths become absolute.

    What cannot be resolved is left as it is, with a complaint. Resolving twice changes nothing.
    """
    complaints: list[Complaint] = []
    for at in [(), *_machine_keys(_outline(root))]:
        for kind in ("device", "model") if at else ("device", "model", "engine", "runtime"):
            node = root.find((*at, kind))
            try:
                if node is not None and isinstance(node.value, str):
                    root = root.with_child((*at, kind), _named(kind, node))
                elif node is not None and node.child("extends"):
                    root = root.with_child((*at, kind), extended(kind, node))
            except InputError as error:
                complaints.append(Complaint((*at, kind), str(error)))
        device = root.find((*at, "device"))
        if device is not None:
            device, found = with_parts(device, (*at, "device"))
            root = root.with_child((*at, "device"), device)
            complaints += found
    for key in path_keys(_outline(root)):
        node = root.find(key)
        if node is None or not isinstance(node.value, str):
            continue
        path = node.place.folder / node.value
        if key[-1] == "trace" and key[0] != "workload" and not looks_like_a_path(node.value):
            continue
        if key[-1] == "weights" and not path.is_dir():
            continue
        problem = regular_file(path)
        if key[-1] in ("measured", "weights"):
            problem = None if path.is_dir() else "is no folder"
        if problem:
            complaints.append(Complaint(key, f"{node.value!r:.200} {problem}"))
        else:
            root = root.with_child(key, replace(node, value=str(path.resolve())))
    return root, complaints


def with_parts(device: Node, at: tuple[str, ...] = ()) -> tuple[Node, list[Complaint]]:
    """A device, itself at key `at`, with the names of its storage and engine replaced by the content of those files.

    Leaves a name as it is, with a complaint, where there is no such file.
    """
    complaints = []
    for kind in ("storage", "engine"):
        part = device.child(kind)
        try:
            if part is not None and isinstance(part.value, str):
                device = device.with_child((kind,), _named(kind, part))
            elif part is not None and part.child("extends"):
                device = device.with_child((kind,), extended(kind, part))
        except InputError as error:
            complaints.append(Complaint((*at, kind), str(error)))
    return device, complaints


# Of a workload: what was recorded.
_RECORDED = ("chunks", "selections", "trace", "recorded_keys")


def path_keys(scenario: Any) -> list[tuple[str, ...]]:
    """The keys of a scenario (as a plain mapping, however wrong) that may lead to a file or folder.

    A trace may also be a name that kvferry.traces knows, weights the name of a model.
    """
    keys: list[tuple[str, ...]] = [("load", "trace"), *(("workload", key) for key in _RECORDED)]
    for at in [(), *_machine_keys(scenario)]:
        machine = scenario
        for key in at:
            machine = machine[key]
        device = machine.get("device")
        processors = device.get("processors") if isinstance(device, dict) else None
        names = processors if isinstance(processors, dict) else ()
        keys += [(*at, "device", "processors", name, "measured") for name in names]
        named = (("link", "trace"), ("link", "up", "trace"), ("live", "weights"), ("live", "text"))
        keys += [(*at, *key) for key in named]
    by_system = scenario.get("system_policies") if isinstance(scenario, dict) else None
    systems = by_system if isinstance(by_system, dict) else {}
    for at in [("policies",), *(("system_policies", system) for system in systems)]:
        keys += [(*at, "tuned"), (*at, "tuned", "name")]
    return keys


def _outline(scenario: Node) -> Any:
    """What ``path_keys`` looks at, as a plain mapping: a whole scenario takes longer to write out than to check."""
    if not isinstance(scenario.value, dict):
        return None
    device, machines = scenario.find(("device", "processors")), scenario.child("machines")
    found: dict[str, Any] = {}
    by_system = scenario.child("system_policies")
    if by_system is not None and isinstance(by_system.value, dict):
        found["system_policies"] = dict.fromkeys(by_system.value)
    if device is not None:
        found["device"] = {"processors": device.value}
    if machines is not None and isinstance(machines.value, dict):
        found["machines"] = {name: _outline(machine) for name, machine in machines.value.items()}
    return found


def _machine_keys(scenario: Any) -> list[tuple[str, ...]]:
    """Where further machines stand in a scenario (as a plain mapping, however wrong)."""
    machines = scenario.get("machines") if isinstance(scenario, dict) else None
    named = machines if isinstance(machines, dict) else {}
    return [("machines", name) for name, machine in named.items() if isinstance(machine, dict)]


def _named(kind: str, node: Node) -> Node:
    tree = read_tree(kind, node.value, node.place.folder)
    return replace(tree, key_place=node.key_place)


def overridden(root: Node, overrides: Sequence[str]) -> tuple[Node, list[Complaint]]:
    """A scenario's tree, resolved, after ``--set a.b=c`` overrides, and what resolving it left. Under another system
    than its own, what it says under `policies` is left out; what overrides say there stays.

    Raises InputError.
    """
    named = root
    for override in overrides:
        if override.partition("=")[0].strip() == "system":
            named = with_override(named, override)
    tree, complaints = resolve(own_policies_only(root, named.child("system")))
    for override in overrides:
        tree, complaints = resolve(with_override(tree, override))
    return tree, complaints


def policies_left_out(source: Node, systems: Collection[str], given: Collection[tuple[str, ...]]) -> list[str]:
    """A remark on what a scenario says under `policies` for the system that it names, where others of `systems` run
    without it, and on what files on which it builds say for theirs. What is `given` besides, by key, holds for all."""
    own, policies = source.child("system"), source.child("policies")
    in_file = [("policies", role) for role in (policies.value if policies and isinstance(policies.value, dict) else ())]
    found = []
    if own is not None and not set(systems) <= {own.value} and (says := _says(source, given)):
        found.append(f"{says}; others run with their own policies")
    if own is None:
        return found
    below = (_says(base, [*given, *in_file]) for base in source.bases)
    return found + [f"{says}; what extends it is of {own.value}, and leaves them out" for says in below if says]


def _says(source: Node, given: Collection[tuple[str, ...]]) -> str:
    """What a scenario says under `policies` for its system, but for what is `given` besides; "" for nothing."""
    own, policies, name = source.child("system"), source.child("policies"), source.child("name")
    if own is None or policies is None or not isinstance(policies.value, dict):
        return ""
    roles = [
        role
        for role, node in policies.value.items()
        if node.value is not None and not {("policies",), ("policies", role)} & {key[:2] for key in given}
    ]
    called = "the scenario" if name is None else name.value
    return f"{called} says {', '.join(roles)} for {own.value} alone" if roles else ""


def check_systems_of(given: Collection[tuple[str, ...]], systems: Collection[str]) -> None:
    """Raises InputError for a key in `given` below `system_policies` of a system that is none of those that run."""
    for key in given:
        if systems and key[0] == "system_policies" and len(key) > 1 and key[1] not in systems:
            instead = f"name it with --systems, or set policies.{'.'.join(key[2:])}" if key[2:] else "leave it out"
            raise InputError(f"{'.'.join(key)}: has no effect on {', '.join(sorted(systems))}; {instead}")


def keys_in(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """The keys that overrides set: ("link", "rtt") of ``link.rtt=4 ms``."""
    return [tuple(override.partition("=")[0].strip().split(".")) for override in overrides]


def policies_in(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """The keys under `policies` that overrides set: ("policies", "assist", "tokens"), or all of them, ("policies",)."""
    return [key for key in keys_in(overrides) if key[0] == "policies"]


def with_override(root: Node, text: str) -> Node:
    """The tree after ``--set a.b=c``; the value is YAML, so that ``{name: greedy}`` and ``null`` work too.

    Raises InputError.
    """
    source = f"--set {text:.100}"
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or len(path) > MOST_DEPTH:
        raise InputError(f"{source}: not KEY=VALUE; write it like link.rtt='4 ms'")
    folder = Path.cwd()
    parsed = parse_document(value, source, folder) if value.strip() else None
    place = Place(source, None, folder)
    return with_value(root, path, node_of(parsed.plain() if parsed else None, place), place)
