"""What is measured, and how: a journal belongs to one set of settings."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvferry.traces.chunks import CHUNK_TOKENS

PARTS = ("compute", "sparsity", "decode", "kernels", "dispatch", "codec", "storage", "link", "contention", "power")
# `retrieval` measures the ops of a decoding step as `decode` does, where a retrieval head chooses: one or the other.
KNOWN_PARTS = (*PARTS, "retrieval")
Attention = Literal["dense", "block-sparse"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`model` is what `load_model` takes, or with `random_weights` a model's description (see scenarios/models)."""

    model: str
    random_weights: bool = False
    family: str = "qwen3"
    dtype: str | None = None
    device: str = "cpu"
    # CPU threads of one op.
    threads: int = 1
    attention: Attention = "dense"
    # Processes that decompress.
    workers: int = 1
    # The longest context; grid points halve from there down to one token chunk.
    context: int = 8 * CHUNK_TOKENS
    # Fewer repetitions and points: for tests, and to see whether it works.
    quick: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens before a chunk: whole token chunks, and none."""
        points, tokens = {0}, self.context // CHUNK_TOKENS * CHUNK_TOKENS
        while tokens >= CHUNK_TOKENS:
            points.add(tokens)
            tokens = tokens // 2 // CHUNK_TOKENS * CHUNK_TOKENS
        return tuple(sorted(points))

    @property
    def chunk_tokens(self) -> tuple[int, ...]:
        """Tokens of a chunk: a whole one, and the shorter ones that contexts end with."""
        few = self.quick or self.attention == "block-sparse"
        return (256, CHUNK_TOKENS) if few else (64, 128, 256, 512, 768, CHUNK_TOKENS)

    @property
    def checks(self) -> tuple[tuple[int, int], ...]:
        """(context, tokens) between grid points, to see how far the tables are off there."""
        between = zip(self.contexts, self.contexts[1:], strict=False)
        middles = [(low + high) // 2 for low, high in between if (low + high) // 2 % CHUNK_TOKENS == 0]
        return tuple((context, tokens) for context in middles for tokens in (384, 896))

    @property
    def question_tokens(self) -> tuple[int, ...]:
        return (16, 64) if self.quick else (1, 16, 64, 256)

    @property
    def decode_contexts(self) -> tuple[int, ...]:
        """Tokens with their KV on storage, before decoding."""
        return (CHUNK_TOKENS, 2 * CHUNK_TOKENS) if self.quick else (CHUNK_TOKENS, 4 * CHUNK_TOKENS, 8 * CHUNK_TOKENS)

    @property
    def decode_batches(self) -> tuple[int, ...]:
        return (1, 2) if self.quick else (1, 4, 16)

    @property
    def decode_selected(self) -> tuple[int, ...]:
        """Tokens that decoding selects; the second with every context, the others with the middle one."""
        return (64, 128) if self.quick else (128, 384, 896)

    @property
    def decode_file_bytes(self) -> float:
        """The largest file of KV."""
        return 2**30

    @property
    def densities(self) -> tuple[float, ...]:
        """Shares of the causal attention blocks that are attended."""
        if self.attention == "dense":
            return (1.0,)
        return (0.1, 1.0) if self.quick else (0.05, 0.25, 1.0)

    @property
    def layers(self) -> int:
        """The most layers of a column that are run: layers are alike."""
        return 8 if self.attention == "dense" else 4

    @property
    def passes(self) -> int:
        """How often all tasks of the processor are gone through."""
        return 1 if self.quick else 4

    @property
    def point_s(self) -> float:
        """Seconds for one point in all passes, unless a single repetition takes longer."""
        return 0.1 if self.quick else 1.0
