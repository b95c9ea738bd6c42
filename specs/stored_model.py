"""A model by the file or folder that describes it: a real run has the weights and the numbers that lie there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Between the weights that a scenario runs with and those that its file or its model says otherwise, in a source.
IN_PLACE_OF = " in place of "

_VALUE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def as_stored(scenario: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a scenario, as it is given, whose model says where it is ``stored``, with the weights there under
    live.weights and as wide as they are there, or as live.dtype says; unchanged if it is no real run, or names other
    weights."""
    model, live = scenario.get("model"), scenario.get("live")
    live = {} if live is None else live
    if scenario.get("backend") != "torch" or not isinstance(model, dict) or not isinstance(live, dict):
        return scenario
    stored = model.get("stored")
    if not isinstance(stored, dict) or "folder" not in stored:
        return scenario
    named = live.get("weights")
    if named is not None and Path(str(named)).resolve() != Path(stored["folder"]).resolve():
        return scenario
    value_bytes = _VALUE_BYTES.get(str(live.get("dtype")), float(stored["value_bytes"]))
    bits = dict.fromkeys(("weight_bits", "embedding_bits"), 8 * value_bytes)
    model = {**model, **bits, "kv_value_bytes": value_bytes}
    return {**scenario, "model": model, "live": {**live, "weights": stored["folder"]}}


def replaced_weights(source: str) -> str | None:
    """What a model's source says of weights that were put in the place of others; None where they were not."""
    return next((part for part in source.split("; ") if IN_PLACE_OF in part), None)
