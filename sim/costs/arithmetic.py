"""The arithmetic and the memory traffic of one model's layers, which the prices of ops are made of."""

from kvferry.machine.ops import Number
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.specs.engine import Kernel
from kvferry.specs.model import ModelSpec
from kvferry.specs.windows import pairs, seen
from kvferry.traces.chunks import KEY_BLOCK, QUERY_BLOCK

# Kernel kind, floating-point operations, bytes to or from memory.
Work = tuple[Kernel, Number, Number]


class LayerArithmetic:
    """The counts of one model's layers, and the works that several ops have in common. Counts may be numpy arrays; so
    are the works then."""

    def __init__(self, model: ModelSpec) -> None:
        self.model, matrices = model, model.matrices
        weight_bytes = matrices.layer_bits / 8
        self.layers, self.spans = model.layers, model.spans
        self.kv_heads = model.kv_heads
        self.layer_flop = 2 * matrices.active_parameters
        self._weight_bytes = weight_bytes
        # Of a layer that all tokens read as a whole.
        self._dense_bytes: Number | None = None if model.experts else matrices.parameters_read(1) * weight_bytes
        # K and V alone, and all three.
        self.projection_flop = 2 * matrices.projection_parameters
        self.projection_bytes = matrices.projection_parameters * weight_bytes
        self.qkv_flop, self.qkv_bytes = 2 * matrices.qkv_parameters, matrices.qkv_parameters * weight_bytes
        # A retrieval head projects to queries and keys, in full precision (SpeContext 4).
        self.retrieval_flop = 2 * matrices.retrieval_parameters
        self.retrieval_bytes = matrices.retrieval_parameters * model.embedding_bits / 8
        self.head_flop = 2 * matrices.head_parameters
        self.head_bytes = matrices.head_parameters * matrices.head_bits / 8
        # One query attending one key, all heads: a product for the score, one for the value.
        self.pair_flop = 2 * model.query_heads * (model.head_dim + model.value_dim)
        # What one token caches in one layer, and what prompts attend to of it: a latent vector brought up to keys and
        # values of all heads.
        self.kv_bytes = model.kv_entry_values * model.kv_value_bytes
        self.prompt_kv_bytes = self.kv_bytes * (model.expansion if model.latent else 1)
        # A block serves all query heads of its KV head, which read its keys and values once.
        self.block_flop = QUERY_BLOCK * KEY_BLOCK * self.pair_flop / model.kv_heads
        self.block_bytes = KEY_BLOCK * self.prompt_kv_bytes / model.kv_heads
        self.key_width = model.key_width
        self.value_bytes = model.kv_value_bytes
        self.score_flop = 2 * model.query_heads * (model.key_width // model.kv_heads)
        self.score_bytes = model.key_width * model.kv_value_bytes
        # The same for a new token, which attends to latent vectors as they are, with absorbed matrices: the whole of
        # one scores, its first part is the value. And what bringing one up to keys and values takes.
        self.new_pair_flop, self.expansion_flop = self.pair_flop, 0
        if latent := model.latent:
            self.new_pair_flop = self.score_flop + 2 * model.query_heads * latent.kv_lora_rank
            made = model.head_dim - latent.qk_rope_head_dim + latent.v_head_dim
            self.expansion_flop = 2 * latent.kv_lora_rank * model.query_heads * made

    def layer_bytes(self, tokens: Number) -> Number:
        """Weights of a layer that this many tokens read together."""
        if self._dense_bytes is not None:
            return self._dense_bytes
        read: Number = self.model.matrices.parameters_read(tokens) * self._weight_bytes
        return read

    def blocks(self, active_blocks: Number) -> Work:
        return "sparse_attention", active_blocks * self.block_flop, active_blocks * self.block_bytes

    def layer(self, batch: Number, tokens: Number, context_tokens: Number, window: int | None = None) -> list[Work]:
        """One layer over prompts, with so much context before them."""
        together = batch * tokens
        return [
            self.attend_prompt(batch, tokens, context_tokens, window),
            *self.multiply(together, together * self.layer_flop, self.layer_bytes(together)),
        ]

    def multiply(self, tokens: Number, flop: Number, n_bytes: Number, part: Number = 1) -> list[Work]:
        """Products of prompts with weights of a layer, in the mean of all layers: what every token passes, and apart
        from it this part of the experts, each of which so few tokens reach that reading it may take longer."""
        mixture = self.model.experts
        if mixture is None:
            return [("gemm", flop, n_bytes)]
        expert = part * (1 - mixture.dense_layers / self.layers) * 3 * self.model.hidden * mixture.ffn
        routed_flop = tokens * 2 * mixture.active * expert
        routed_bytes = (mixture.read(tokens) - mixture.shared) * expert * self._weight_bytes
        return [("gemm", flop - routed_flop, n_bytes - routed_bytes), ("gemm", routed_flop, routed_bytes)]

    def attend_prompt(self, batch: Number, tokens: Number, context_tokens: Number, window: int | None) -> Work:
        """The attention of one layer over prompts."""
        flop = batch * pairs(tokens, context_tokens, window) * self.pair_flop
        # Every block of queries reads the keys before it, and no more than the windows of all its queries hold.
        query_blocks = -(-tokens // QUERY_BLOCK)
        most = None if window is None else window + QUERY_BLOCK - 1
        kv_tokens = query_blocks * seen(context_tokens + (tokens + 1) / 2, most)
        return "attention", flop, batch * kv_tokens * self.prompt_kv_bytes

    def attend(self, batch: Number, tokens: Number, kernel: AttentionKernel) -> list[Work]:
        """One layer's new tokens over this many of KV each: what the kernel copies first, and what it reads."""
        n_bytes, copied = batch * tokens * self.kv_bytes, kernel.copied(self.model)
        expands = kernel.expands(self.model)
        pair_flop = self.pair_flop if expands else self.new_pair_flop
        works: list[Work] = [("gather", 0, copied * n_bytes)] if copied else []
        if expands and self.expansion_flop:
            works.append(("product", batch * tokens * self.expansion_flop, 0))
        return [*works, (kernel.reads, batch * tokens * pair_flop, kernel.attended(self.model) * n_bytes)]

    def routed(self, batch: Number) -> Work:
        """The experts of one layer that new tokens are routed to, each read once however many go there."""
        mixture, one = self.model.experts, 3 * self.model.hidden
        if mixture is None:
            return "gemv", 0, 0
        expert = one * mixture.ffn
        read: Number = (mixture.read(batch) - mixture.shared) * expert * self._weight_bytes
        return "gemv", batch * 2 * mixture.active * expert, read

    def score(self, vectors: Number, rank: Number | None) -> Work:
        """Vectors of this many numbers, all heads together, scored by every query head; None: full keys."""
        if rank is None:
            return "scoring", vectors * self.score_flop, vectors * self.score_bytes
        return "scoring", vectors * (rank / self.key_width) * self.score_flop, vectors * rank * self.value_bytes
