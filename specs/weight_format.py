"""Weight formats by the names that people download them under: bits per weight of every part of a model.

A k-quantisation of llama.cpp gives some tensors more bits than its name says. The rules are those of
``llama-quant.cpp`` without an importance matrix; the bits of a block are those of ``ggml-common.h``. Left out: norms
and biases (some 0.01 %) and the file's header, which takes some 60 bytes per entry of the vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from kvferry.specs.base import BadKey, Spec

# Bits per weight, with the scales of its block, and the weights that share a block.
_BLOCK_BITS = {
    "q4_0": 4.5, "q4_1": 5.0, "q5_0": 5.5, "q5_1": 6.0, "q8_0": 8.5, "iq4_nl": 4.5, "mxfp4": 4.25,
    "q4_k": 4.5, "q5_k": 5.5, "q6_k": 6.5625, "iq4_xs": 4.25,
}  # fmt: skip
# A row that is no multiple of 256 weights takes the small-block format instead.
_SUPERBLOCK = 256
_INSTEAD = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "iq4_xs": "iq4_nl"}

# A router that chooses experts is stored as it was trained: float32 (llama.cpp).
ROUTER_BITS = 32.0

Share = Callable[[int], float]


def _more_bits(layers: int) -> float:
    """Share of the layers that a medium k-quantisation gives more bits: the first and last eighth, and every third
    layer between them."""
    eighth = layers // 8
    chosen = sum(i < eighth or i >= 7 * layers // 8 or (i - eighth) % 3 == 2 for i in range(layers))
    return chosen / layers


def _first_eighth(layers: int) -> float:
    return (layers // 8) / layers


def bits(stored: str | float, row: int) -> float:
    """Bits per weight of a tensor whose rows have `row` weights."""
    if not isinstance(stored, str):
        return stored
    if row % _SUPERBLOCK:
        stored = _INSTEAD.get(stored, stored)
    return _BLOCK_BITS[stored]


# Parts of a model that have formats of their own.
Part = Literal["attention", "fused", "value", "ffn", "down", "embedding", "head"]


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """What each part of a model is stored in: a block format's name, or bits per weight.

    ``value`` and ``down`` (the value projections, the way out of the feed-forward network) have their own format in a
    share of the layers and ``rest`` in the others. ``head`` is the output head, and the embedding where the two are
    one.
    """

    rest: str | float
    embedding: str | float
    head: str | float
    value: tuple[str, Share] | None = None
    down: tuple[str, Share] | None = None
    # Experts alone have `rest`, all other weights of a layer have this.
    attention: str | float | None = None
    # One tensor for queries, keys and values, where a model has such.
    fused: str | None = None
    source: str

    def mean_bits(self, part: Part, row: int, layers: int) -> float:
        """Returns the mean bits per weight, over the layers, of a part whose rows have this many weights: ``attention``
        is projections to queries and keys and the way out of attention, ``value`` those to values, ``fused`` all three
        as one, ``ffn`` the ways into the feed-forward network, ``down`` the one out of it."""
        of_attention = self.rest if self.attention is None else self.attention
        plain = {"attention": of_attention, "value": of_attention, "embedding": self.embedding, "head": self.head}
        plain["fused"] = of_attention if self.fused is None else self.fused
        rest = bits(plain.get(part, self.rest), row)
        own = {"value": self.value, "down": self.down}.get(part)
        if own is None:
            return rest
        stored, share = own
        return share(layers) * bits(stored, row) + (1 - share(layers)) * rest


_GGUF = "llama.cpp, llama-quant.cpp and ggml-common.h"
WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "q4_0": WeightFormat(rest="q4_0", embedding="q4_0", head="q6_k", source=_GGUF),
    "q4_k_s": WeightFormat(
        rest="q4_k",
        embedding="q4_k",
        head="q6_k",
        value=("q5_k", lambda layers: min(4, layers) / layers),
        down=("q5_k", _first_eighth),
        source=_GGUF,
    ),
    "q4_k_m": WeightFormat(
        rest="q4_k",
        embedding="q4_k",
        head="q6_k",
        value=("q6_k", _more_bits),
        down=("q6_k", _more_bits),
        fused="q5_k",
        source=_GGUF,
    ),
    "q5_k_m": WeightFormat(
        rest="q5_k",
        embedding="q5_k",
        head="q6_k",
        value=("q6_k", _more_bits),
        down=("q6_k", _more_bits),
        fused="q6_k",
        source=_GGUF,
    ),
    "q6_k": WeightFormat(rest="q6_k", embedding="q6_k", head="q6_k", source=_GGUF),
    "q8_0": WeightFormat(rest="q8_0", embedding="q8_0", head="q8_0", source=_GGUF),
    "iq4_xs": WeightFormat(
        rest="iq4_xs",
        embedding="iq4_xs",
        head="q6_k",
        value=("q5_k", lambda layers: 1.0),
        down=("q5_k", _first_eighth),
        source=_GGUF,
    ),
    "mxfp4": WeightFormat(
        rest="mxfp4", embedding="q8_0", head="q8_0", attention="q8_0", source="llama.cpp, MXFP4_MOE: experts alone"
    ),
    "mlx-4bit": WeightFormat(
        rest=4.5, embedding=4.5, head=4.5, source="mlx_lm: groups of 64 share a 16-bit scale and bias"
    ),
    "mlx-8bit": WeightFormat(rest=8.5, embedding=8.5, head=8.5, source="as mlx-4bit"),
    "mlc-4bit": WeightFormat(rest=4.0, embedding=4.0, head=4.0, source="MLC q4f16_ft: a 16-bit scale per channel"),
    "xnnpack-4bit": WeightFormat(
        rest=4 + 32 / 128, embedding=4.5, head=4 + 32 / 128, source="ExecuTorch: groups of 128 share a 32-bit scale"
    ),
    "awq": WeightFormat(
        rest=4 + 20 / 128,
        embedding=16.0,
        head=16.0,
        source="AutoAWQ: groups of 128 share a 16-bit scale and a 4-bit zero",
    ),
    "gptq": WeightFormat(rest=4 + 20 / 128, embedding=16.0, head=16.0, source="as awq, groups of 128"),
    "fp8": WeightFormat(rest=8.0, embedding=16.0, head=16.0, source="vLLM: linear layers alone, a scale per tensor"),
    "bf16": WeightFormat(rest=16.0, embedding=16.0, head=16.0, source="as trained"),
    "fp16": WeightFormat(rest=16.0, embedding=16.0, head=16.0, source="as trained"),
}

# What files of llama.cpp hold: an engine reads such files that reads one of these.
OF_GGUF = frozenset(name for name, stored in WEIGHT_FORMATS.items() if stored.source == _GGUF)


def _known_format(name: str) -> str:
    if name.lower() in WEIGHT_FORMATS:
        return name.lower()
    near = get_close_matches(name.lower(), WEIGHT_FORMATS, n=1, cutoff=0.4)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no weight format is called {name!r}; known: {', '.join(WEIGHT_FORMATS)}{hint}")


WeightFormatName = Annotated[str, AfterValidator(_known_format)]


class PrecisionSpec(Spec):
    """Keys of a model that say how it is stored; None: as the model's own file says."""

    # Of each weight in the layers.
    weight_bits: float | None = Field(default=None, gt=0, le=64)
    # Of each weight in embeddings and output head.
    embedding_bits: float | None = Field(default=None, gt=0, le=64)
    # A weight format by name, such as q4_k_m, which says the bits of every weight.
    weights: WeightFormatName | None = None
    # Of each number in the KV cache.
    kv_value_bytes: float | None = Field(default=None, gt=0, le=8)

    @model_validator(mode="after")
    def _one_way_to_say_weights(self) -> "PrecisionSpec":
        if self.weights is not None and (self.weight_bits or self.embedding_bits):
            raise BadKey(
                "weights",
                f"{self.weights} says the bits of every weight; weight_bits and embedding_bits do not stand beside it",
            )
        return self


def in_precision(model: Mapping[str, Any], precision: Any) -> dict[str, Any]:
    """A model, as a file has it, in that precision; its source says what is not the file's. Applied twice, it changes
    nothing more; a precision that is none changes nothing."""
    try:
        own = PrecisionSpec.model_validate(precision).model_dump(exclude_none=True)
    except ValidationError:
        return dict(model)
    other = [key for key, value in own.items() if model.get(key) != value]
    source = model.get("source")
    if other and isinstance(source, str):
        own["source"] = f"{source}; but for {', '.join(other)}: the scenario's precision"
    # A format replaces numbers of bits, and the other way round.
    ours, theirs = {"weight_bits", "embedding_bits", "output_head_bits"}, {"weights"}
    gone = (ours if own.keys() & theirs else set()) | (theirs if own.keys() & ours else set())
    if "embedding_bits" in own:  # of embeddings and output head, as long as nothing else is said of the head
        gone.add("output_head_bits")
    return {**{key: value for key, value in model.items() if key not in gone}, **own}
