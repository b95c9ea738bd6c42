"""Real Transformers from Hugging Face: loaded from safetensors alone, or made of random weights.

Nothing in a model's folder is executed and nothing pickled is read: no remote code, no adapters, no .bin.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.model.folder import (
    check_rope_kind,
    check_unsupported,
    check_weights,
    description_of,
    local_folder,
)
from kvferry.specs.errors import InputError, MissingExtra, pick
from kvferry.specs.model import LatentKv, ModelSpec

try:
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        GraniteConfig,
        GraniteForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Olmo2Config,
        Olmo2ForCausalLM,
        Phi3Config,
        Phi3ForCausalLM,
        PreTrainedConfig,
        PreTrainedModel,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        SmolLM3Config,
        SmolLM3ForCausalLM,
    )
    from transformers.utils import logging as hf_logging
except ImportError as error:
    raise MissingExtra("a real model needs torch and transformers: install the [torch] extra") from error


@dataclass(frozen=True)
class Family:
    """The classes behind a `model_type`."""

    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]


# Qwen2.5 is of the type qwen2, Phi-3 and Phi-3.5 of phi3, and gemma3_text is Gemma 3 without eyes.
FAMILIES = {
    "deepseek_v3": Family(DeepseekV3Config, DeepseekV3ForCausalLM),
    "gemma3_text": Family(Gemma3TextConfig, Gemma3ForCausalLM),
    "granite": Family(GraniteConfig, GraniteForCausalLM),
    "llama": Family(LlamaConfig, LlamaForCausalLM),
    "mistral": Family(MistralConfig, MistralForCausalLM),
    "olmo2": Family(Olmo2Config, Olmo2ForCausalLM),
    "phi3": Family(Phi3Config, Phi3ForCausalLM),
    "qwen2": Family(Qwen2Config, Qwen2ForCausalLM),
    "qwen3": Family(Qwen3Config, Qwen3ForCausalLM),
    "smollm3": Family(SmolLM3Config, SmolLM3ForCausalLM),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What random weights of a family say besides dimensions: Mistral's own window is of its first version alone.
_OWN: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}}
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "tokenizer.model")


def load_model(
    reference: str | Path, dtype: str | None = None, device: str = "cpu", *, allow_download: bool = False
) -> PreTrainedModel:
    """A model ready for inference: a bundled one ("byte-large"), from a folder, or by its name on the hub
    ("Qwen/Qwen3-0.6B").

    A hub's name is looked up in the local cache, and fetched only with `allow_download`. `dtype` is a key of DTYPES;
    None: as stored. Raises InputError for what is missing, damaged, of another family, or does not fit.
    """
    folder = _folder(str(reference), allow_download)
    config = _config(folder)
    chosen = pick("dtype", DTYPES, dtype) if dtype else _stored_dtype(config)
    target = check_device(device)
    check_weights(folder)
    spec = _spec(config, chosen, str(reference))
    _check_fits(spec, target)
    # Its bar on standard error says nothing of a load of some seconds, and stands between our own lines.
    hf_logging.disable_progress_bar()
    try:
        # Left out: spreading over several devices; weights pass through host memory.
        model, found = FAMILIES[config.model_type].model.from_pretrained(
            folder,
            config=config,
            dtype=chosen,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # safetensors, json, torch and transformers each raise their own at damaged files
        raise InputError(f"{folder}: the weights cannot be read: {_one_line(error)}") from error
    lacking = sorted(found["missing_keys"]) + sorted(str(key[0]) for key in found["mismatched_keys"])
    if lacking:
        raise InputError(f"{folder}: {len(lacking)} weights are missing or of another shape, such as {lacking[0]}")
    model = _ready(model, target)
    for name, weights in model.named_parameters():
        if not torch.stack(torch.aminmax(weights)).isfinite().all():
            raise InputError(f"{folder}: is damaged: {name} has weights that are infinite or no numbers")
    return model


def random_model(
    family: str,
    spec: ModelSpec,
    *,
    seed: int,
    dtype: str = "float32",
    device: str = "cpu",
    spread: float = 0.02,
    rope: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """A model of that family and these dimensions, its weights drawn with standard deviation `spread`.

    Biases and norms are drawn too, so that none is neutral. `rope` are the config's `rope_parameters`. The same
    seed gives the same weights, up to rounding, in every dtype. Raises InputError for dimensions that the family
    does not allow, and for a model that does not fit.
    """
    kind = pick("model family", FAMILIES, family)
    chosen, target = pick("dtype", DTYPES, dtype), check_device(device)
    try:
        config = kind.config(
            num_hidden_layers=spec.layers,
            hidden_size=spec.hidden,
            num_attention_heads=spec.query_heads,
            **_attention_of(family, spec),
            **_OWN.get(family, {}),
            intermediate_size=spec.ffn,
            vocab_size=spec.vocabulary,
            tie_word_embeddings=spec.tied_embeddings,
            rope_parameters=dict(rope) if rope else None,
            max_position_embeddings=131072,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        check_config(config, f"a {family} with random weights")
        _check_fits(_spec(config, torch.float32, spec.name), torch.device("cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = kind.model(config)
            for weights in model.parameters():
                neutral = weights.detach().mean() if weights.ndim == 1 else 0.0  # norms are about 1, biases about 0
                torch.nn.init.normal_(weights, float(neutral), spread)
    except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError) as error:
        raise InputError(f"{spec.name}: not a {family}: {_one_line(error)}") from error
    return _ready(model.to(chosen), target)


def spec_of(model: PreTrainedModel, name: str | None = None) -> ModelSpec:
    """The dimensions of a live model, its weights and KV as wide as its dtype."""
    return _spec(model.config, model.dtype, name or model.config.name_or_path or f"random {model.config.model_type}")


def window_of(config: PreTrainedConfig) -> int | None:
    """Returns the newest tokens that some layers attend to; None: every layer attends to all."""
    kinds = getattr(config, "layer_types", None)
    if not getattr(config, "use_sliding_window", True) or (kinds is not None and "sliding_attention" not in kinds):
        return None
    window = getattr(config, "sliding_window", None)
    return None if window is None else int(window)


def check_config(config: PreTrainedConfig, where: str) -> None:
    """Raise InputError unless a model can be prefilled chunk by chunk, to the same result as at once."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if "sliding_attention" in kinds and window_of(config) is None:
        raise InputError(f"{where}: has sliding-window layers (layer_types) and no sliding_window that says how long")
    if unknown := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise InputError(f"{where}: has layers of {unknown[0]}; full_attention and sliding_attention are supported")
    for key in ("rms_norm_eps", "layer_norm_eps"):
        epsilon = getattr(config, key, 0.0)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
            raise InputError(f"{where}: {key} is {epsilon!r:.60}; a number from 0 to below 1 would do")
    ropes = config.rope_parameters or {}
    # Layers of different kinds may have one each.
    for rope in ropes.values() if kinds & ropes.keys() else (ropes,):
        base = rope.get("rope_theta", 1.0)
        if isinstance(base, bool) or not isinstance(base, int | float) or not 1 <= base < math.inf:
            raise InputError(f"{where}: rope_theta is {base!r:.60}; a number from 1 on would do")
        check_rope_kind(rope, where)
    if getattr(config, "first_k_dense_replace", config.num_hidden_layers) < config.num_hidden_layers:
        raise InputError(f"{where}: has a mixture of experts; one feed-forward network in each layer is supported")
    check_unsupported(vars(config), where)


def folder_of(reference: str) -> Path:
    """Returns the folder of a model's weights on this machine. Raises InputError."""
    return _folder(reference, allow_download=False)


def _folder(reference: str, allow_download: bool) -> Path:
    if (folder := local_folder(reference)) is not None:
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(reference, allow_patterns=list(_HUB_FILES), local_files_only=not allow_download))
    except (OSError, ValueError) as error:
        hint = "" if allow_download else "; it is not in the local cache, and downloads are not allowed here"
        raise InputError(f"{reference}: no such folder, and not to be had from the hub{hint}") from error


def _config(folder: Path) -> PreTrainedConfig:
    path = folder / "config.json"
    description = description_of(folder)
    kind = FAMILIES[str(description["model_type"])]
    for key in [*description]:
        # Other files to read, or to execute; of attention and experts, a kernel on the hub to fetch.
        if key in ("transformers_weights", "auto_map") or "_implementation" in key:
            del description[key]
    try:
        config = kind.config.from_dict(description)
        _spec(config, torch.float32, str(path))  # refuses dimensions that no model has
    except Exception as error:  # each validator of a config raises its own
        raise InputError(f"{path}: not the config of a {kind.model.__name__}: {_one_line(error)}") from error
    check_config(config, str(path))
    config.name_or_path = str(folder)
    return config


def _stored_dtype(config: PreTrainedConfig) -> torch.dtype:
    stored = config.dtype or torch.float32
    if stored not in DTYPES.values():
        raise InputError(f"stored as {stored}, which nothing here computes with; give one of {', '.join(DTYPES)}")
    return stored


def check_device(name: str) -> torch.device:
    """The torch device of that name. Raises InputError when there is none here."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} is not available here: {_one_line(error)}") from None
    return device


def _check_fits(spec: ModelSpec, device: torch.device) -> None:
    free_bytes = _free_bytes(device)
    if free_bytes is not None and spec.weight_bytes > free_bytes:
        raise InputError(
            f"{spec.name}: its weights take {spec.weight_bytes / 2**30:.2f} GiB, "
            f"{free_bytes / 2**30:.2f} GiB are free on {device}; a smaller model or a shorter dtype would do"
        )


def _free_bytes(device: torch.device) -> float | None:
    """Memory that can still be had; None where the system does not report it."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free_kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if free_kib is None else float(free_kib) * 1024


def _attention_of(family: str, spec: ModelSpec) -> dict[str, Any]:
    """What a config says of attention. Raises ValueError for a family of another kind."""
    if (family == "deepseek_v3") != (spec.latent is not None):
        what = "a latent cache (model.latent) is of the family deepseek_v3, keys and values of heads of another"
        raise ValueError(f"{what}; live.family would say which")
    if spec.experts is not None:
        raise ValueError("a mixture of experts (model.experts) runs in the modelled world alone")
    if spec.latent is None:
        return {"num_key_value_heads": spec.kv_heads, "head_dim": spec.head_dim}
    latent = spec.latent.model_dump()
    plain = spec.head_dim - spec.latent.qk_rope_head_dim
    return {**latent, "qk_nope_head_dim": plain, "first_k_dense_replace": spec.layers, "num_mtp_layers": 0}


def _spec(config: PreTrainedConfig, dtype: torch.dtype, name: str) -> ModelSpec:
    heads = config.num_attention_heads
    attention = {
        "kv_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
    }
    if config.model_type == "deepseek_v3":
        latent = {key: getattr(config, key) for key in LatentKv.model_fields}
        attention = {"kv_heads": 1, "head_dim": config.qk_head_dim, "latent": LatentKv(**latent)}
    return ModelSpec(
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        query_heads=heads,
        **attention,
        ffn=config.intermediate_size,
        vocabulary=config.vocab_size,
        tied_embeddings=config.tie_word_embeddings,
        window=_shorter_window(config),
        weight_bits=8 * dtype.itemsize,
        embedding_bits=8 * dtype.itemsize,
        kv_value_bytes=dtype.itemsize,
        source=f"the config of {name}",
    )


def _shorter_window(config: PreTrainedConfig) -> int | None:
    """Returns the window of attention where the model reads longer sequences than that."""
    window = window_of(config)
    return None if window is None or window >= config.max_position_embeddings else window


def _ready(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    # cuDNN makes a plan for each new length of the KV, and so at every token: a tenth of a second, on an H200.
    torch.backends.cuda.enable_cudnn_sdp(device.type != "cuda")
    try:
        return model.to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError:
        raise InputError(f"{model.config.name_or_path}: does not fit into the memory of {device}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
