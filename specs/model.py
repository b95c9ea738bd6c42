"""A Transformer by its dimensions, and the sizes that follow from them."""

from typing import Any

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.matrices import Matrices
from kvferry.specs.units import Count
from kvferry.specs.weight_format import WeightFormatName
from kvferry.specs.windows import LayersAlike


class LatentKv(Spec):
    """Multi-head latent attention (DeepSeek-V2, Section 2.1), with the names of Hugging Face's ``config.json``.

    Of each token and layer it caches a latent vector of ``kv_lora_rank`` numbers, from which the keys and values of all
    heads are made, and a key of ``qk_rope_head_dim`` numbers with the rotary embedding, which all heads share.
    ``v_head_dim``: numbers of a head's value. ``q_lora_rank``: numbers that queries are made from; None: from the
    hidden state itself.
    """

    kv_lora_rank: Count = Field(ge=1, le=10**5)
    qk_rope_head_dim: Count = Field(ge=1, le=10**5)
    v_head_dim: Count = Field(ge=1, le=10**5)
    q_lora_rank: Count | None = Field(default=None, ge=1, le=10**5)

    @property
    def width(self) -> int:
        """Numbers that one token and layer cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class Experts(Spec):
    """A mixture of experts (DeepSeekMoE) instead of the feed-forward network, in all layers but the first
    ``dense_layers``: each token passes ``shared`` experts and ``active`` of ``routed`` ones, of ``ffn`` numbers each.
    """

    routed: Count = Field(ge=1, le=10**4)
    active: Count = Field(ge=1, le=10**4)
    shared: Count = Field(default=0, ge=0, le=10**4)
    ffn: Count = Field(ge=1, le=10**7)
    dense_layers: Count = Field(default=0, ge=0, le=1000)

    def read(self, tokens: Any) -> Any:
        """Experts whose weights are read for this many tokens, a number or an array: they choose evenly, each for
        itself."""
        return self.shared + self.routed * (1 - (1 - self.active / self.routed) ** tokens)


class ModelSpec(Spec):
    """A decoder-only Transformer with grouped-query attention and a gated feed-forward network.

    With ``latent``, attention is multi-head latent attention: there is one KV head, the latent cache, and ``head_dim``
    are the numbers of a head's query, rotary ones included. With ``experts``, ``ffn`` is that of the dense layers.
    """

    name: str
    layers: Count = Field(ge=1, le=1000)
    hidden: Count = Field(ge=1, le=10**6)
    query_heads: Count = Field(ge=1, le=10**4)
    kv_heads: Count = Field(ge=1, le=10**4)
    head_dim: Count = Field(ge=1, le=10**5)
    ffn: Count = Field(ge=1, le=10**7)
    vocabulary: Count = Field(ge=1, le=10**8)
    tied_embeddings: bool = Field(default=False, strict=True)
    # One tensor projects to queries, keys and values (Phi): some formats store it as a whole in more bits.
    fused_qkv: bool = Field(default=False, strict=True)
    weight_bits: float = Field(default=4.0, gt=0, le=64)
    # Embeddings and output head: 4-bit formats (AWQ, GPTQ) leave them at 16 bits.
    embedding_bits: float = Field(default=16.0, gt=0, le=64)
    # The output head where it has other bits than the embeddings.
    output_head_bits: float | None = Field(default=None, gt=0, le=64)
    # A format by its name, which says the bits of each part of the model, in place of the numbers above.
    weights: WeightFormatName | None = None
    kv_value_bytes: float = Field(default=2.0, gt=0, le=8)
    # The newest tokens that layers attend to, all but those in `full_layers`; None: all attend to all.
    window: Count | None = Field(default=None, ge=1, le=10**8)
    # Layers, counted from 0, that attend to all tokens where others attend to a window.
    full_layers: tuple[Count, ...] = Field(default=(), max_length=1000)
    latent: LatentKv | None = None
    experts: Experts | None = None
    source: str

    @model_validator(mode="before")
    @classmethod
    def _dimensions_alone(cls, value: Any) -> Any:
        """Returns where a described model lies is no part of it: a scenario has taken it for a real run."""
        return {key: item for key, item in value.items() if key != "stored"} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelSpec":
        for check in (_check_heads, _check_weights, _check_latent, _check_experts, _check_windows, _check_bytes):
            check(self)
        return self

    @property
    def value_dim(self) -> int:
        """Numbers of a head's value."""
        return self.latent.v_head_dim if self.latent else self.head_dim

    @property
    def matrices(self) -> Matrices:
        """All that its weights are in."""
        return Matrices(self)

    @property
    def parameters(self) -> int:
        return round(self.layers * self.matrices.layer_parameters) + self.matrices.embedding_parameters

    @property
    def weight_bytes(self) -> float:
        of = self.matrices
        embeddings = 0.0 if self.tied_embeddings else of.head_parameters * of.token_bits
        layers = self.layers * of.layer_parameters * of.layer_bits
        return (layers + of.head_parameters * of.head_bits + embeddings) / 8

    @property
    def key_width(self) -> int:
        """Numbers in one token's key in one layer, as they are scored: all KV heads side by side, or all that a latent
        cache has."""
        return self.latent.width if self.latent else self.kv_heads * self.head_dim

    @property
    def kv_entry_values(self) -> int:
        """Numbers that one token caches in one layer: key and value of all KV heads, or a latent vector with its rotary
        key. All that is said of KV in bytes follows from here."""
        return self.latent.width if self.latent else 2 * self.key_width

    @property
    def expansion(self) -> float:
        """Size of one token's keys and values with one of each for every query head, over what is cached: the query
        heads that share a KV head, or what a latent vector is brought up to."""
        return self.query_heads * (self.head_dim + self.value_dim) / self.kv_entry_values

    @property
    def key_copies(self) -> float:
        """Copies of a retrieval head's keys with which they are scored: one for every query head that shares a KV head;
        a latent cache is scored as it is."""
        return 1.0 if self.latent else self.query_heads / self.kv_heads

    @property
    def kv_entry_bytes(self) -> int:
        """What one token caches in one layer, all KV heads."""
        return round(self.kv_entry_values * self.kv_value_bytes)

    def kv_full_bytes(self, tokens: int) -> int:
        """KV of all tokens and layers, in whole entries."""
        return self.layers * tokens * self.kv_entry_bytes

    @property
    def without_window(self) -> "ModelSpec":
        """The model as if all layers attended to all tokens."""
        return self.model_copy(update={"window": None, "full_layers": ()})

    @property
    def spans(self) -> tuple[LayersAlike, ...]:
        """Layers alike in how far back they attend, those that attend to all tokens first."""
        full = self.layers if self.window is None else len(self.full_layers)
        spans = LayersAlike(full), LayersAlike(self.layers - full, self.window)
        return tuple(alike for alike in spans if alike.layers)

    def window_of(self, layer: int) -> int | None:
        """The newest tokens that a layer attends to; None: all."""
        return None if layer in self.full_layers else self.window

    def exceeds_window(self, tokens: int | None) -> bool:
        """Whether some layer does not see all of a sequence of so many tokens; None: of any length."""
        return self.window is not None and len(self.full_layers) < self.layers and (tokens or 10**9) > self.window

    def beyond_window(self, tokens: int | None) -> str | None:
        """Says that a sequence of so many tokens is longer than a window; None: it is not."""
        if not self.exceeds_window(tokens):
            return None
        lengths = "lengths are drawn or recorded" if tokens is None else f"sequences have {tokens:,} tokens"
        return f"some layers attend to a window of the newest {self.window:,} tokens alone, and {lengths}"

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token caches, over all layers and KV heads."""
        return self.layers * self.kv_entry_values

    @property
    def kv_bytes_per_token(self) -> float:
        return self.kv_values_per_token * self.kv_value_bytes


def _check_heads(model: ModelSpec) -> None:
    if model.query_heads % model.kv_heads:
        raise BadKey("kv_heads", f"{model.kv_heads} cannot share {model.query_heads} query heads evenly")


def _check_weights(model: ModelSpec) -> None:
    numbers = sorted({"weight_bits", "embedding_bits", "output_head_bits"} & model.model_fields_set)
    if model.weights is not None and numbers:
        what = f"{model.weights} says the bits of every weight already; without {' and '.join(numbers)} it would do"
        raise BadKey("weights", what)


def _check_latent(model: ModelSpec) -> None:
    latent = model.latent
    if latent is not None and model.kv_heads != 1:
        raise BadKey("kv_heads", f"{model.kv_heads} cannot be: all heads share the latent cache; 1 would do")
    if latent is not None and model.head_dim <= latent.qk_rope_head_dim:
        what = f"{model.head_dim} holds the {latent.qk_rope_head_dim} numbers with the rotary embedding"
        raise BadKey("head_dim", f"{what} and others; more than {latent.qk_rope_head_dim} would do")


def _check_experts(model: ModelSpec) -> None:
    experts = model.experts
    if experts is not None and experts.active > experts.routed:
        what = f"{experts.active} active experts of {experts.routed} cannot be"
        raise BadKey("experts", f"{what}; up to {experts.routed} would do")
    if experts is not None and experts.dense_layers > model.layers:
        what = f"{experts.dense_layers} dense layers of {model.layers} cannot be"
        raise BadKey("experts", f"{what}; up to {model.layers} would do")


def _check_windows(model: ModelSpec) -> None:
    full = model.full_layers
    if full and model.window is None:
        raise BadKey("full_layers", "all layers attend to all tokens without a window; leave it out")
    if list(full) != sorted({*full}) or any(layer >= model.layers for layer in full):
        raise BadKey("full_layers", f"are not layers from 0 to {model.layers - 1}, each once and ascending")


def _check_bytes(model: ModelSpec) -> None:
    """Storage is read in bytes, hence one head's KV of one token takes one at least."""
    numbers = model.kv_entry_values // model.kv_heads
    if numbers * model.kv_value_bytes < 1:
        what = f"{model.kv_value_bytes:g} bytes for each of {numbers} numbers are less than a byte"
        raise BadKey("kv_value_bytes", f"{what} per token and head; at least {1 / numbers:g} will do")
