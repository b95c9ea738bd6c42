"""Weights of a model whose file says how they are stored, and a default that the engine does not read.

What a bundled scenario says of weights is a default: the format of a GGUF file or of a quantised Hugging Face folder
holds in its place, and where there is none, the engine's usual one if it does not read the default. What the
user says himself, in a file of his own or with ``--set``, holds in any case.
"""

from collections.abc import Collection, Sequence

from kvferry.scenarios.library import BUNDLED
from kvferry.specs.node import Node, node_of
from kvferry.specs.stored_model import IN_PLACE_OF

_KEYS = ("weights", "weight_bits", "embedding_bits")
# Formats that people run, of each engine the one that it is mostly run with.
_USUAL = ("q4_k_m", "mlx-4bit", "awq", "mlc-4bit", "xnnpack-4bit")


def own_weights(model: Node, scenario: Collection[str] = ()) -> str | None:
    """Returns what a model's own file says of how its weights are stored; None: it says nothing, or is bundled, as
    people run such a model in many formats, and a folder that is not quantised in others than its own. `scenario`:
    sources in which the model is described beside the precision, and has no file of its own."""
    if model.child("stored") is not None:
        stored = model.find(("stored", "format"))
        return None if stored is None or stored.value is None else str(stored.value)
    said = (model.child(key) for key in ("weights", "weight_bits"))
    files = (one for one in said if one is not None and not _is_bundled(one) and one.place.source not in scenario)
    own = next((one.value for one in files if one.value is not None), None)
    return f"{own:g} bits" if isinstance(own, int | float) else own


def usual_weights(read: Sequence[str]) -> str | None:
    """Returns the format that people mostly run an engine with, of those that it reads."""
    return next((name for name in _USUAL if name in read), read[0] if read else None)


def with_weights_of_file(tree: Node) -> Node:
    """A resolved scenario in the weights that it is to run with; the model's source says what was put in the place of
    what."""
    found = ((key, tree.find(("precision", key))) for key in _KEYS)
    said = {key: node for key, node in found if node is not None and node.value is not None}
    if not said:
        return tree
    defaults = [key for key, node in said.items() if _is_bundled(node)]
    scenarios_own = ", ".join(str(node.value) if key == "weights" else key for key, node in said.items())
    model = tree.child("model")
    beside = {node.place.source for node in said.values()}
    if model is not None and (own := own_weights(model, beside)) is not None:
        if len(defaults) < len(said):
            return _noted(tree, f"{scenarios_own}{IN_PLACE_OF}the model's own ({own})")
        for key in defaults:
            tree = tree.without(("precision", key))
        return _noted(tree, f"the model's own ({own}){IN_PLACE_OF}the scenario's {scenarios_own}")
    weights, (engine, read) = said.get("weights"), _engine(tree)
    if "weights" in defaults and weights is not None and read and str(weights.value).lower() not in read:
        usual = str(usual_weights(read))
        first = node_of(usual, weights.place)
        what = f"{usual}{IN_PLACE_OF}the scenario's {weights.value}, which {engine} does not read"
        return _noted(tree.with_child(("precision", "weights"), first), what)
    return tree


def _is_bundled(node: Node) -> bool:
    return not node.place.source.startswith("--set") and node.place.folder.is_relative_to(BUNDLED)


def _engine(tree: Node) -> tuple[str, list[str]]:
    """The engine's name and the weight formats that it reads; none where that is not known."""
    own, devices = tree.child("engine"), tree.find(("device", "engine"))
    engine = devices if own is None or own.value is None else own
    said = engine.plain() if engine is not None else None
    read = said.get("weights") if isinstance(said, dict) else None
    if not isinstance(said, dict) or not isinstance(read, list) or not all(isinstance(one, str) for one in read):
        return "", []
    return str(said.get("name")), read


def _noted(tree: Node, what: str) -> Node:
    source = tree.find(("model", "source"))
    if source is None or not isinstance(source.value, str):
        return tree
    return tree.with_child(("model", "source"), node_of(f"{source.value}; {what}", source.place))
