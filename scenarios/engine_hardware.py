"""Engines on hardware that they do not exist for, and on files that they do not read: refused, with what would do."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvferry.scenarios.library import names
from kvferry.scenarios.resolve import Complaint, read_tree
from kvferry.specs.node import Node
from kvferry.specs.weight_format import OF_GGUF

# Weights that folders of Hugging Face hold, and that engines say they read. Others, such as MXFP4, they do not say.
_OF_FOLDERS = ("awq", "gptq", "fp8")


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
    if _runs_on(said, kind, vendor):
        if (what := _unread(tree, said, asked=key == ("engine",))) is not None:
            readers = [name for name, one in _that_run(kind, vendor) if _unread(tree, one, asked=True) is None]
            would = (
                f"engine: {', '.join(readers)} would do, or" if readers else "without an engine it would do, or with"
            )
            what = f"{what}, which {said.get('name')} does not read; {would} precision.weights: {said['weights'][0]}"
            yield Complaint(("model",), what, at_key=True)
        return
    here = [name for name, _ in _that_run(kind, vendor)]
    hardware = " ".join(word for word in (vendor, kind) if word)
    kinds = " and ".join(f"{one}s" for one in said.get("processors") or ())
    own_vendors = f" of {' and '.join(said['vendors'])}" if said.get("vendors") else ""
    instead = f"{', '.join(here)} would do" if here else "without an engine it would do"
    what = (
        f"{said.get('name')} runs on {kinds}{own_vendors}, not on the {hardware} of {of_device.get('name')}; {instead}"
    )
    yield Complaint(key, what)


def _that_run(kind: str, vendor: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the bundled engines that run on such hardware."""
    for name in names("engine"):
        engine = _bundled(name)
        if _runs_on(engine, kind, vendor):
            yield name, engine


def _unread(tree: Node, engine: Mapping[str, Any], *, asked: bool) -> str | None:
    """Returns which weights of the model's own file an engine would have to read that does not; None where it reads
    them, or others are to be run. `asked`: by the user; a device's usual engine is not held to a quantised folder."""
    stored, own, read = tree.find(("model", "stored", "format")), tree.child("precision"), engine.get("weights")
    if stored is None or not isinstance(stored.value, str) or not isinstance(read, list) or not read:
        return None
    if own is not None and any(own.child(key) is not None for key in ("weights", "weight_bits")):
        return None
    reads = {str(name).lower() for name in read}
    if stored.value == "GGUF":
        return None if reads & OF_GGUF else "a GGUF file"
    quantised = stored.value.lower()
    return f"weights in {quantised}" if asked and quantised in _OF_FOLDERS and quantised not in reads else None


def _runs_on(engine: Mapping[str, Any], kind: str, vendor: str | None) -> bool:
    """Returns whether there is such an engine; malformed values are refused where they are validated."""
    processors, vendors = engine.get("processors"), engine.get("vendors")
    if isinstance(processors, dict) and processors and kind not in processors:
        return False
    return vendor is None or not isinstance(vendors, list) or not vendors or vendor in vendors


def _bundled(name: str) -> dict[str, Any]:
    engine = read_tree("engine", name, Path()).plain()
    return engine if isinstance(engine, dict) else {}
