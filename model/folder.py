"""A model's folder, looked at without torch: what could not be run is refused before seconds go into imports."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from kvferry.scenarios.faults import nearest
from kvferry.specs.errors import InputError
from kvferry.specs.live import RealModel

# As `model_type` in a config.json; `model/models.py` has their classes.
FAMILY_NAMES: tuple[str, ...] = get_args(RealModel.model_fields["family"].annotation)
# These stretch the rotary embedding with the length of the sequence, so that keys depend on tokens yet to come.
_ROPE_BY_LENGTH = ("dynamic", "longrope")
_MAX_JSON_BYTES = 64 * 2**20
# Small trained models that come with the project, one folder each; see training/.
BUNDLED = Path(__file__).resolve().with_name("bundled")


def local_folder(reference: str) -> Path | None:
    """Returns the folder that a reference means: of a bundled model, or on this machine; None: a name on the hub.
    Raises InputError for what is none of these."""
    if reference in bundled():
        return BUNDLED / reference
    if (folder := Path(reference).expanduser()).is_dir():
        return folder
    if folder.exists() or reference.startswith((".", "/", "~")) or reference.count("/") != 1:
        known = ", ".join(bundled())
        raise InputError(
            f"{reference}: not a folder with a model, nor bundled ({known}), nor a name on the hub like Qwen/Qwen3-0.6B"
        )
    return None


def check_weights_of(reference: str) -> None:
    """Raises InputError for a model that cannot be run, by what the files of its folder say of themselves."""
    try:
        if (folder := local_folder(reference)) is not None:
            description_of(folder)
            check_weights(folder)
    except InputError as error:
        raise InputError(f"{error}; `random` draws weights") from None


def description_of(folder: Path) -> dict[str, Any]:
    """Returns what a folder's config.json says. Raises InputError for a model of another family, an adapter, quantised
    weights, and what no decoder here computes."""
    path = folder / "config.json"
    found = _json(path)
    family = str(found.get("model_type"))
    if family not in FAMILY_NAMES:
        what = f"model_type {family!r:.60} is not run for real; {', '.join(FAMILY_NAMES)} are"
        raise InputError(f"{path}: {what}{nearest(family, FAMILY_NAMES)}")
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{folder}: an adapter; the whole model is needed, with the adapter merged into it")
    check_unsupported(found, str(path))
    for said in (found, found.get("rope_parameters"), found.get("rope_scaling")):
        # Layers of different kinds may have one each.
        for rope in (said, *said.values()) if isinstance(said, dict) else ():
            if isinstance(rope, dict):
                check_rope_kind(rope, str(path))
    return found


def check_unsupported(description: Mapping[str, Any], where: str) -> None:
    """Raises InputError for attention or weights of a kind that no decoder here computes with."""
    for key in ("use_bidirectional_attention", "attn_logit_softcapping"):
        if description.get(key):
            raise InputError(f"{where}: {key} is not supported")
    if description.get("quantization_config") is not None:
        raise InputError(f"{where}: has quantised weights; float32, bfloat16 and float16 are supported")


def check_rope_kind(rope: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a rotary embedding of another kind; older files have `type` for `rope_type`."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in _ROPE_BY_LENGTH:
        raise InputError(f"{where}: rope_type {kind!r} makes keys depend on later tokens; 'yarn' or 'llama3' would do")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(f"{where}: partial_rotary_factor is {rope['partial_rotary_factor']!r:.60}; 1.0 is supported")


def check_weights(folder: Path) -> None:
    """Raises InputError for weights that are not whole and in safetensors: one file, or an index whose files all lie
    beside it."""
    if (folder / "model.safetensors").is_file():
        return
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        also = f"; {others[0]} is pickled and not read: convert it" if others else ""
        raise InputError(f"{folder}: has no model.safetensors{also}")
    shards = _json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise InputError(f"{index}: has no weight_map")
    for shard in sorted(set(map(str, shards.values()))):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise InputError(f"{index}: {shard!r} is not a .safetensors file beside it")
        if not (folder / shard).is_file():
            raise InputError(f"{folder}: {shard} is missing")


def bundled() -> tuple[str, ...]:
    """Names of the models that come with the project."""
    return tuple(sorted(path.parent.name for path in BUNDLED.glob("*/config.json")))


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise InputError(f"{path}: {path.stat().st_size:,} bytes; at most {_MAX_JSON_BYTES:,} are read")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; a model's folder has config.json and *.safetensors") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: a mapping is needed, this is a {type(content).__name__}")
    return content


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number that a model could be computed with")
    return number
