"""Kinds of kernels: what an efficiency belongs to."""

from typing import Annotated, Literal

from pydantic import Field

# Kernel kinds: what an efficiency belongs to. Never a system. "attention" is dense prefill attention,
# "sparse_attention" the block-sparse one with its mask derivation, "decode_attention" one new token's, "gather" copies
# of KV. "unsplit_attention" is a new token's where one block of threads reads all KV of a sequence and head.
Kernel = Literal[
    "gemm",
    "gemv",
    "attention",
    "sparse_attention",
    "decode_attention",
    "unsplit_attention",
    "scoring",
    "gather",
    "svd",
]
Share = Annotated[float, Field(gt=0, le=1)]
