"""A Transformer by its dimensions, and the sizes that follow from them."""

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.units import Count


class ModelSpec(Spec):
    """A decoder-only Transformer with grouped-query attention and a gated feed-forward network."""

    name: str
    layers: Count = Field(ge=1, le=1000)
    hidden: Count = Field(ge=1, le=10**6)
    query_heads: Count = Field(ge=1, le=10**4)
    kv_heads: Count = Field(ge=1, le=10**4)
    head_dim: Count = Field(ge=1, le=10**5)
    ffn: Count = Field(ge=1, le=10**7)
    vocabulary: Count = Field(ge=1, le=10**8)
    tied_embeddings: bool = Field(default=False, strict=True)
    weight_bits: float = Field(default=4.0, gt=0, le=64)
    # Embeddings and output head: 4-bit formats (AWQ, GPTQ) leave them at 16 bits.
    embedding_bits: float = Field(default=16.0, gt=0, le=64)
    kv_value_bytes: float = Field(default=2.0, gt=0, le=8)
    source: str

    @model_validator(mode="after")
    def _groups_of_heads(self) -> "ModelSpec":
        if self.query_heads % self.kv_heads:
            raise BadKey("kv_heads", f"{self.kv_heads} cannot share {self.query_heads} query heads evenly")
        return self

    @model_validator(mode="after")
    def _at_least_a_byte(self) -> "ModelSpec":
        """Storage is read in bytes, hence one head's KV of one token takes one at least."""
        if 2 * self.head_dim * self.kv_value_bytes < 1:
            what = f"{self.kv_value_bytes:g} bytes for each of {2 * self.head_dim} numbers are less than a byte"
            raise BadKey("kv_value_bytes", f"{what} per token and head; at least {0.5 / self.head_dim:g} will do")
        return self

    @property
    def projection_parameters(self) -> int:
        """Weights of one layer's K and V projections: all that emitting a layer's KV costs."""
        return 2 * self.hidden * self.kv_heads * self.head_dim

    @property
    def retrieval_parameters(self) -> int:
        """Weights of a retrieval head's projections to queries and keys, of one layer (SpeContext 4.3); the embeddings
        are the model's own."""
        return self.hidden * (self.query_heads + self.kv_heads) * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: Q, K, V and output projections and the gated feed-forward network."""
        attention = 2 * self.hidden * self.query_heads * self.head_dim + self.projection_parameters
        return attention + 3 * self.hidden * self.ffn

    @property
    def head_parameters(self) -> int:
        """Weights of the output head: read once per decoding step."""
        return self.vocabulary * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embeddings and the output head, which may be one and the same."""
        return self.head_parameters * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def weight_bytes(self) -> float:
        layers = self.layers * self.layer_parameters * self.weight_bits
        return (layers + self.embedding_parameters * self.embedding_bits) / 8

    @property
    def key_width(self) -> int:
        """Numbers in one token's key in one layer, all KV heads side by side."""
        return self.kv_heads * self.head_dim

    @property
    def kv_entry_bytes(self) -> int:
        """Key and value of one token in one layer, all KV heads."""
        return round(2 * self.key_width * self.kv_value_bytes)

    def kv_full_bytes(self, tokens: int) -> int:
        """Keys and values of all tokens and layers, in whole entries."""
        return self.layers * tokens * self.kv_entry_bytes

    @property
    def kv_values_per_token(self) -> int:
        """Key and value numbers that one token adds, over all layers and KV heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> float:
        return self.kv_values_per_token * self.kv_value_bytes
