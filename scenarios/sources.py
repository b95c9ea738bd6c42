"""Where a profile's values come from, as files and overrides change them: a value that replaces another has not its
source."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from kvferry.specs.node import Node, Place, node_of

# Keys that are no values of a device or model.
_NO_VALUES = ("name", "main", "vendor", "by_data_sheet", "extends", "source", "sources")


def whence(place: Place) -> str:
    """What stands as the source of a value that was written there."""
    return place.source if place.source.startswith("--set") else f"given in {place.source.rpartition('/')[2]}"


def changed_by(own: Node, base: Node, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of a base's values that are other ones in `own`."""
    for key, node in own.value.items():
        below = base.child(key)
        if below is None or (key in _NO_VALUES and not above) or key == "sources":
            continue
        if isinstance(node.value, dict) and isinstance(below.value, dict):
            yield from changed_by(node, below, (*above, key))
        elif node.plain() != below.plain():
            yield (*above, key)


def restated(described: Node, changed: Collection[tuple[str, ...]], by: Place, own: Sequence[str] = ()) -> Node:
    """A device, storage device or model whose values at the keys `changed` were written at another place than
    the source that it has for them. `own`: keys of sources that were written along with the new values."""
    sources, source = described.child("sources"), described.child("source")
    changed = [key for key in changed if key and key[0] not in _NO_VALUES]
    if not changed:
        return described
    if sources is None and source is not None:  # a model has one source for all
        words = ", ".join(map(".".join, changed))
        return described.with_child(("source",), node_of(f"{source.value}; but for {words}: {whence(by)}", by))
    if sources is None or not isinstance(sources.value, dict):
        return described
    of_storage = [key[1:] for key in changed if len(key) > 1 and key[0] == "storage"]
    storage = described.child("storage")
    if of_storage and storage is not None and storage.child("sources"):
        described = described.with_child(("storage",), restated(storage, of_storage, by))
        changed = [key for key in changed if key[0] != "storage" or len(key) == 1]
    entries = dict(sources.value)
    for key in map(".".join, changed):
        if any(f"{key}.".startswith(f"{known}.") for known in own):
            continue
        entries = {old: text for old, text in entries.items() if not f"{old}.".startswith(f"{key}.")}
        entries[key] = node_of(whence(by), by)
    return described.with_child(("sources",), replace(sources, value=entries))


def laid_over(own: Node, base: Node) -> Node:
    """A device, storage device or model's own keys over those of the one that it extends."""
    sources = own.child("sources")
    keys = list(sources.value) if sources is not None and isinstance(sources.value, dict) else []
    merged = own.over(base)
    if own.child("source"):
        return merged
    return restated(merged, list(changed_by(own, base)), own.place, keys)


def with_value(scenario: Node, path: tuple[str, ...], new: Node, by: Place) -> Node:
    """A resolved scenario with another value at a path, written at `by`."""
    root = scenario.with_child(path, new)
    depth = 3 if path[0] == "machines" else 1  # machines.NAME.device, or the scenario's own
    described, was = root.find(path[:depth]), scenario.find(path)
    if (
        path[depth - 1 : depth] not in (("device",), ("model",), ("runtime",))
        or len(path) == depth
        or described is None
    ):
        return root
    if was is not None and was.plain() == new.plain():
        return root
    return root.with_child(path[:depth], restated(described, [path[depth:]], by))
