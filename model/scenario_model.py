"""The model that a scenario names, on its device: checked against the scenario's dimensions, and kept for the next."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from kvferry.model.models import check_device, load_model, random_model, spec_of
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario

_SAME = (
    *("layers", "hidden", "query_heads", "kv_heads", "head_dim", "ffn", "vocabulary", "kv_value_bytes"),
    *("latent", "experts"),
)


def model_of(scenario: Scenario) -> tuple[PreTrainedModel, Path | None]:
    """The model, and its folder if it has one. Raises InputError when it is not the scenario's."""
    live, spec = scenario.live, scenario.model
    try:
        check_device(live.processor)
    except InputError as error:
        raise InputError(f"live.processor: {error}") from None
    if live.weights == "random":
        dtype = live.dtype or {2.0: "bfloat16", 4.0: "float32"}.get(spec.kv_value_bytes, "float32")
        return _random(live.family, spec.model_dump_json(), scenario.seed, dtype, live.processor), None
    reference = live.weights or spec.name
    model = _loaded(reference, live.dtype, live.processor)
    _check_same(spec, spec_of(model), reference)
    return model, Path(model.config.name_or_path)


def _check_same(wanted: ModelSpec, found: ModelSpec, reference: str) -> None:
    both = {key: (getattr(found, key), getattr(wanted, key)) for key in _SAME}
    differ = {key: pair for key, pair in both.items() if pair[0] != pair[1]}
    if differ:
        shown = ", ".join(f"{key} {_shown(ours)} instead of {_shown(theirs)}" for key, (ours, theirs) in differ.items())
        would = ""
        if differ.keys() == {"kv_value_bytes"}:
            would = f"; --set precision.kv_value_bytes={found.kv_value_bytes:g} reads it as it lies there"
            would += ", --set live.dtype=bfloat16 in 16 bits" if found.kv_value_bytes == 4 else ""
        raise InputError(f"live.weights: {reference} is not the scenario's model {wanted.name}: {shown}{would}")


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "none" if value is None else f"({value})"


# Worlds come one after the other, most of them on the same model.
@lru_cache(maxsize=1)
def _loaded(reference: str, dtype: str | None, device: str) -> PreTrainedModel:
    try:
        return load_model(reference, dtype, device)
    except InputError as error:
        raise InputError(f"live.weights: {error}; `random` draws weights") from None


@lru_cache(maxsize=1)
def _random(family: str, spec_json: str, seed: int, dtype: str, device: str) -> PreTrainedModel:
    return random_model(family, ModelSpec.model_validate_json(spec_json), seed=seed, dtype=dtype, device=device)
