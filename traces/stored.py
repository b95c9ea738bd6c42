"""A context stored in the cloud: the encoded size of every KV chunk, and the attention that computing it takes."""

from dataclasses import dataclass

import numpy as np

from kvferry.codecs.sizes import CODECS, Encoding
from kvferry.specs.errors import pick
from kvferry.traces.chunks import ChunkTrace


@dataclass(frozen=True, eq=False)
class StoredContext:
    """``tokens[t]`` of each token chunk, ``active_blocks[t, l, h]`` that computing it attends, and its encoding."""

    tokens: np.ndarray
    active_blocks: np.ndarray
    encoding: Encoding

    @classmethod
    def modelled(cls, chunks: ChunkTrace, codec: str, head_dim: int) -> "StoredContext":
        """The context with sizes that the model of a codec gives for its entropies. Raises InputError for an unknown
        codec."""
        sizes = pick("codec", CODECS, codec)
        return cls(chunks.tokens, chunks.active_blocks, sizes(chunks.entropy_bits, chunks.tokens * 2 * head_dim))
