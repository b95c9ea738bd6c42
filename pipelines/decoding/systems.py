"""Systems that decode with their KV on storage or in memory, by name: KVSwap and what it is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvferry.pipelines.decoding.plan import DecodePolicy
from kvferry.pipelines.parameters import arguments_of


@dataclass(frozen=True, kw_only=True)
class DecodeSystem:
    """``keeps``: where the KV is. On `storage`, `policy` says how; `memory` in pages (vLLM); `swapped` by the
    operating system when it does not fit."""

    about: str
    keeps: Literal["storage", "memory", "swapped"] = "storage"
    policy: DecodePolicy = DecodePolicy()

    @property
    def codec(self) -> None:
        """No contexts of this workload lie in a cloud."""
        return None

    def with_policies(self, policies: Mapping[str, Any]) -> "DecodeSystem":
        """The same system with some parameters of its policy replaced. Raises BadParameters, an InputError."""
        return replace(self, policy=replace(self.policy, **arguments_of(DecodePolicy, policies)))


_PER_TOKEN = DecodePolicy(group_tokens=1, reuse=False, compression=None, index="partial-keys")

DECODE_SYSTEMS: dict[str, DecodeSystem] = {
    "kvswap": DecodeSystem(about="groups predicted from a low-rank key cache, read ahead, kept in a reuse buffer"),
    "flexgen": DecodeSystem(
        policy=DecodePolicy(group_tokens=1, selected_tokens=None, reuse=False),
        about="all KV of a layer read back while the layer before computes",
    ),
    "infinigen": DecodeSystem(
        policy=replace(_PER_TOKEN, per_head=True), about="tokens predicted and read head by head, from partial keys"
    ),
    "infinigen-star": DecodeSystem(policy=_PER_TOKEN, about="the same, one choice of tokens for all heads"),
    "infinigen-star-ru": DecodeSystem(
        policy=replace(_PER_TOKEN, reuse=True, metadata_share=0.5), about="the same, with a reuse buffer"
    ),
    "shadowkv": DecodeSystem(
        policy=DecodePolicy(
            group_tokens=32,
            per_head=True,
            values_only=True,
            ahead=False,
            reuse=False,
            compression=None,
            landmarks=True,
            scores="best_head",
        ),
        about="chunks chosen by their mean key; values read, keys rebuilt from a low-rank cache made at prefill",
    ),
    "loki": DecodeSystem(
        policy=replace(_PER_TOKEN, per_head=True, index="principal-keys"),
        about="as infinigen, from keys in their principal components",
    ),
    "vllm": DecodeSystem(keeps="memory", about="all KV in memory, in pages; what does not fit waits for its turn"),
    "os-paging": DecodeSystem(
        keeps="swapped",
        policy=DecodePolicy(group_tokens=8, selected_tokens=None, ahead=False, reuse=False),
        about="all KV in memory, swapped by the operating system when it does not fit",
    ),
}
