"""A model's dimensions from Hugging Face's ``config.json``."""

import json
from pathlib import Path
from typing import Any

from kvferry.scenarios.library import names
from kvferry.specs.document import read_text, regular_file, shown
from kvferry.specs.errors import InputError
from kvferry.specs.node import Node, Place, node_of

CONFIG = "config.json"
# Of formats without a group of their own choice: FP8, and MXFP4 with the scale that 32 weights share.
_WHOLE = {"fp8": 8.0, "mxfp4": 4.25}
# What the source of a model that was read from one begins with.
_READ_FROM = f"Hugging Face {CONFIG}"
_BITS = {"float32": 32.0, "float": 32.0, "bfloat16": 16.0, "float16": 16.0, "half": 16.0}
# Families whose output head is the embedding unless the file says otherwise; others keep the two apart.
_TIED = ("gemma", "gpt2", "phi3small")
# Layers of Qwen that attend to all tokens, and of other families one of how many, where files do not say it.
_QWEN_FULL = 28
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
_DIMENSIONS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "query_heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
}
# Of DeepSeek-V2 and its like: a latent cache, and a mixture of experts.
_LATENT = ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = {"routed": "n_routed_experts", "active": "num_experts_per_tok", "ffn": "moe_intermediate_size"}
# A mixture in all layers beside ordinary attention, by family.
_MIXTURES = {
    "qwen3_moe": _EXPERTS | {"routed": "num_experts"},
    "mixtral": _EXPERTS | {"routed": "num_local_experts", "ffn": "intermediate_size"},
    "gpt_oss": _EXPERTS | {"routed": "num_local_experts", "ffn": "intermediate_size"},
}
# Keys of layers that are no attention to all tokens or a window, by how they begin.
_OTHER_LAYERS = {
    "state-space layers": ("mamba", "ssm_", "state_size", "rwkv", "hybrid_override_pattern", "attn_layer_period"),
    "layers of linear attention": ("linear_num", "linear_attn", "linear_key", "attn_type_list"),
    "recurrent or convolutional layers": ("lru_width", "conv_L_cache"),
    "layers that share KV": ("num_kv_shared_layers",),
    "attention to tokens that an indexer picks": ("index_topk",),
}
_KINDS = ("full_attention", "sliding_attention", "chunked_attention")


def config_at(path: Path) -> Path | None:
    """The config.json that a path means: the file itself, or the one in that folder; None for anything else."""
    file = path / CONFIG if path.is_dir() else path
    return file if file.suffix == ".json" and regular_file(file) is None else None


def folder_behind(name: str, source: str) -> str | None:
    """Returns a line on the folder of models that lies here under the name of a bundled one, which was taken; None
    where there is none."""
    if name not in names("model") or source.startswith(_READ_FROM) or config_at(Path(name)) is None:
        return None
    return f"{name} is the bundled model; the folder of that name is model=./{name}"


def model_node(file: Path) -> Node:
    """The model that a config.json describes. Raises InputError for one that is no decoder of the kind that KVFerry
    models, or lacks a dimension."""
    name = shown(file)
    try:
        config = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not JSON: {str(error)[:100]}") from None
    if not isinstance(config, dict):
        raise InputError(f"{name}: not a model's config: it holds no mapping")
    text = config.get("text_config")  # of models that also see or hear
    text = config | text if isinstance(text, dict) else config
    if refused := _not_modelled(text):
        raise InputError(f"{name}: {refused}")
    if text.get("kv_lora_rank"):
        lacks = next((key for key in (*_LATENT, "qk_nope_head_dim") if not isinstance(text.get(key), int)), None)
        if lacks is not None:
            raise InputError(f"{name}: {lacks}: is missing or no whole number; multi-head latent attention has it")
    missing = [key for key in _DIMENSIONS.values() if not isinstance(text.get(key), int)]
    if missing:
        raise InputError(f"{name}: {missing[0]}: is missing or no whole number; a decoder's config.json has it")
    place = Place(name, None, file.parent)
    return node_of(_model(text, file), place)


def _not_modelled(config: dict[str, Any]) -> str | None:
    """Returns the key of layers or experts of a kind that is not modelled, and what they are; None: it has none."""
    family, kinds = str(config.get("model_type", "")), config.get("layer_types")
    for what, begins in _OTHER_LAYERS.items():
        found = next((key for key in config if str(key).startswith(begins) and config[key]), None)
        if found is not None:
            return f"{found}: {what} are not modelled"
    other = next((kind for kind in kinds if kind not in _KINDS), None) if isinstance(kinds, list) else None
    if other is not None:
        return f"layer_types: {other!r:.60} is not modelled; full_attention and sliding_attention are"
    if family.startswith(("rwkv", "mamba", "retnet")):
        return f"model_type: {family!r:.60} is not modelled: it keeps no KV"
    if config.get("attention_chunk_size"):
        return "attention_chunk_size: layers that attend to a chunk of the tokens are not modelled"
    experts = next((key for key in config if "experts" in key and config[key]), None)
    needed = _mixture(family).values() if family in _MIXTURES else (*_EXPERTS.values(), *_LATENT)
    if experts and not all(isinstance(config.get(key), int) for key in needed):
        known = f"as {', '.join(_MIXTURES)} and DeepSeek-V2 have it"
        return f"{experts}: a mixture of experts is modelled {known}; one feed-forward network, otherwise"
    if experts and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        return "mlp_only_layers: a mixture of experts in some layers alone is modelled as DeepSeek-V2 has it"
    return None


def _mixture(family: str) -> dict[str, str]:
    """Returns the keys of a family's mixture of experts."""
    return _MIXTURES.get(family, _EXPERTS)


def _window(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the window that layers attend to, where it is shorter than the model's contexts, and the layers that
    attend to all."""
    family, kinds = str(config.get("model_type", "")), config.get("layer_types")
    # Qwen's own files have a window that is not in use.
    in_use = config.get("use_sliding_window", not family.startswith("qwen"))
    if not in_use or (isinstance(kinds, list) and not any("full" not in str(kind) for kind in kinds)):
        return {}
    tokens, longest = config.get("sliding_window"), config.get("max_position_embeddings")
    if isinstance(tokens, int) and tokens > 0 and not (isinstance(longest, int) and longest <= tokens):
        return {"window": tokens, "full_layers": _full_layers(config, family)}
    return {}


def _full_layers(config: dict[str, Any], family: str) -> list[int]:
    layers, kinds = config["num_hidden_layers"], config.get("layer_types")
    if isinstance(kinds, list):
        return [layer for layer, kind in enumerate(kinds) if "full" in str(kind)]
    if family.startswith("qwen"):
        return list(range(min(layers, config.get("max_window_layers", _QWEN_FULL))))
    every = config.get("sliding_window_pattern") or _FULL_EVERY.get(family)
    return [] if not isinstance(every, int) or every < 1 else list(range(every - 1, layers, every))


def _quantised_bits(quantised: dict[str, Any]) -> float | None:
    """Bits of a weight with its share of its group's scale (16 bits) and zero, as AWQ and GPTQ have them."""
    bits, group, method = quantised.get("bits"), quantised.get("group_size"), quantised.get("quant_method")
    if method in _WHOLE:
        return _WHOLE[method]
    if not isinstance(bits, int | float) or method not in ("awq", "gptq") or not isinstance(group, int) or group < 1:
        return bits
    return bits + (16 + bits) / group


def _model(config: dict[str, Any], file: Path) -> dict[str, Any]:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    family = str(config.get("model_type", ""))
    tied = config.get("tie_word_embeddings")
    dtype = str(config.get("torch_dtype") or config.get("dtype")).removeprefix("torch.")
    bits = _BITS.get(dtype, 16.0)
    quantised = config.get("quantization_config")
    quantised = quantised if isinstance(quantised, dict) else {}
    weight_bits = _quantised_bits(quantised)
    attention: dict[str, Any] = {
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or (hidden // heads if heads else 0),
    }
    if config.get("kv_lora_rank"):
        latent = {key: config.get(key) for key in (*_LATENT, "q_lora_rank")}
        head_dim = (config.get("qk_nope_head_dim") or 0) + (config.get("qk_rope_head_dim") or 0)
        attention = {"kv_heads": 1, "head_dim": head_dim, "latent": latent}
    mixture = _mixture(family)
    if config.get(mixture["routed"]):
        dense, shared = config.get("first_k_dense_replace") or 0, config.get("n_shared_experts") or 0
        own = {key: config[theirs] for key, theirs in mixture.items()}
        attention["experts"] = {**own, "shared": shared, "dense_layers": dense}
    return {
        **{key: config[theirs] for key, theirs in _DIMENSIONS.items()},
        **attention,
        "name": file.resolve().parent.name if file.name == CONFIG else file.stem,
        "tied_embeddings": bool(tied) if tied is not None else family.startswith(_TIED),
        **({"fused_qkv": True} if family == "phi3" else {}),
        "weight_bits": float(weight_bits or bits),
        "embedding_bits": bits,
        "kv_value_bytes": min(bits, 16.0) / 8,
        **_window(config),
        # For a real run, which has its weights and KV as they are there.
        "stored": {
            "folder": str(file.resolve().parent),
            "value_bytes": _BITS.get(dtype, 32.0) / 8,
            # As the folder's weights are quantised, if they are.
            "format": str(quantised.get("quant_method") or f"{weight_bits} bits") if weight_bits else None,
        },
        "source": f"{_READ_FROM}, {file.resolve().parent.name}",
    }
