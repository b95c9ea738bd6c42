"""Engines on hardware that they do not exist for, and on files that they do not read: refused, with what would do."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvferry.scenarios.library import names
from kvferry.scenarios.resolve import Complaint, read_tree
from kvferry.specs.node import Node
from kvferry.specs.weight_format import OF_GGUF


def engine_complaints(tree: Node) -> Iterator[Complaint]:
    """Yields what is wrong with the engine of a resolved scenario on its device's main processor, or else with its
    model's file. The scenario has the weights that it is to run with (scenarios/weights_of_file.py)."""
    key = ("engine",) if (own := tree.child("engine")) is not None and own.value is not None else ("device", "engine")
    engine, device = tree.find(key), tree.child("device")
    if engine is None or device is None:
        return
    said, of_device, chosen = engine.plain(), device.plain(), tree.child("processor")
    if not isinstance(said, dict) or not isinstance(of_device, dict):
        return
    main = of_device.get("main") if chosen is None or chosen.value is None else chosen.value
    processors = of_device.get("processors")
    processor = processors.get(main) if isinstance(processors, dict) and isinstance(main, str) else None
    kind = processor.get("kind") if isinstance(processor, dict) else None
    vendor = of_device.get("vendor") if isinstance(of_device.get("vendor"), str) else None
    if not isinstance(kind, str):
        return
    here = {name: one for name in names("engine") if _runs_on(one := _bundled(name), kind, vendor)}
    if _runs_on(said, kind, vendor):
        yield from _file_complaints(tree, said, here)
        return
    hardware = " ".join(word for word in (vendor, kind) if word)
    kinds = " and ".join(f"{one}s" for one in said.get("processors") or ())
    own_vendors = f" of {' and '.join(said['vendors'])}" if said.get("vendors") else ""
    instead = f"{', '.join(here)} would do" if here else "without an engine it would do"
    what = (
        f"{said.get('name')} runs on {kinds}{own_vendors}, not on the {hardware} of {of_device.get('name')}; {instead}"
    )
    yield Complaint(key, what)


def _file_complaints(
    tree: Node, engine: Mapping[str, Any], here: Mapping[str, Mapping[str, Any]]
) -> Iterator[Complaint]:
    """Yields a complaint about a GGUF file whose own weights an engine would have to read that reads none; `here`: what
    runs on this hardware."""
    stored, own = tree.find(("model", "stored", "format")), tree.child("precision")
    read = engine.get("weights")
    if stored is None or stored.value != "GGUF" or not isinstance(read, list) or not read or _reads_gguf(engine):
        return
    if own is not None and any(own.child(key) is not None for key in ("weights", "weight_bits")):
        return
    readers = [name for name, one in here.items() if _reads_gguf(one)]
    would = f"engine: {', '.join(readers)} would do, or" if readers else "without an engine it would do, or with"
    what = f"a GGUF file, which {engine.get('name')} does not read; {would} precision.weights: {read[0]}"
    yield Complaint(("model",), what, at_key=True)


def _reads_gguf(engine: Mapping[str, Any]) -> bool:
    read = engine.get("weights")
    return isinstance(read, list) and any(str(name).lower() in OF_GGUF for name in read)


def _runs_on(engine: Mapping[str, Any], kind: str, vendor: str | None) -> bool:
    """Returns whether there is such an engine; malformed values are refused where they are validated."""
    processors, vendors = engine.get("processors"), engine.get("vendors")
    if isinstance(processors, dict) and processors and kind not in processors:
        return False
    return vendor is None or not isinstance(vendors, list) or not vendors or vendor in vendors


def _bundled(name: str) -> dict[str, Any]:
    engine = read_tree("engine", name, Path()).plain()
    return engine if isinstance(engine, dict) else {}
