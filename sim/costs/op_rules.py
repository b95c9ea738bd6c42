"""Every op that the simulator prices, registered once: what it comes to in arithmetic, what it costs besides, and the
columns that a measured table of it may have.

Left out everywhere: activations (prefill tiles are bound by compute, decoding by weights and KV), norms,
rotary embedding and sampling (their time is the profile's ``layer_s`` and ``sequence_s``).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvferry.machine.ops import (
    Advance,
    Assign,
    Bookkeep,
    Cluster,
    DecodeAttention,
    DecodeStep,
    Decompose,
    FeedForward,
    Number,
    Op,
    OutputHead,
    Prefill,
    PrefillHead,
    PrefillLayer,
    Project,
    ProjectKv,
    ProjectQ,
    Reconstruct,
    RestOfLayer,
    Retrieve,
    RoutedExperts,
    Select,
    Split,
)
from kvferry.policies.decode.means import KMEANS_ROUNDS, SPLIT_ROUNDS
from kvferry.sim.costs.arithmetic import LayerArithmetic, Work
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.specs.windows import seen
from kvferry.traces.chunks import causal_blocks


class Arithmetic(LayerArithmetic):
    """The works of one model's ops."""

    def __call__(self, op: Op) -> list[Work]:
        """Returns the works of an op, one after the other. Block-sparse attention, where there is any, comes first."""
        return rule_of(type(op)).works(self, op)

    def layer_passes(self, op: Op) -> float:
        """Returns how many layers the op runs through, for the fixed cost of a layer."""
        return rule_of(type(op)).passes(self)


# A column of a measured table: the op's attribute, or what it follows from.
Feature = str | Callable[[Any, Arithmetic], Number]


@dataclass(frozen=True)
class OpRule:
    """``passes``: how many layers the op runs through. ``features``: columns that a measured table of it may have,
    which is named ``table``. ``fixed_s``: what a processor takes outside of kernels, besides its layers.
    ``beside_s``: what the host does while the kernels run. ``eager``: its layers are launched kernel by kernel.
    ``compiled``: runs as the next larger compiled shape, on a processor that has such."""

    table: str
    works: Callable[[Arithmetic, Any], list[Work]]
    passes: Callable[[Arithmetic], float]
    features: Mapping[str, Feature]
    fixed_s: Callable[[ProcessorSpec, Any], Number]
    beside_s: Callable[[ProcessorSpec, Any], Number]
    eager: Callable[[Any], bool]
    compiled: bool

    def features_of(self, op: Op, arithmetic: Arithmetic) -> dict[str, Number]:
        return {
            name: getattr(op, feature) if isinstance(feature, str) else feature(op, arithmetic)
            for name, feature in self.features.items()
        }


RULES: dict[type, OpRule] = {}


def rule_of(op: type) -> OpRule:
    """Raises InputError for an op that only a real machine runs."""
    try:
        return RULES[op]
    except KeyError:
        raise InputError(f"{op.__name__} has no price: nothing registers it in sim/costs/op_rules.py") from None


def _none(*_: object) -> float:
    return 0.0


def _one_layer(arithmetic: Arithmetic) -> float:
    return 1.0


def _all_layers(arithmetic: Arithmetic) -> float:
    return float(arithmetic.layers)


def _paging_s(processor: ProcessorSpec, op: DecodeStep | OutputHead | Retrieve) -> Number:
    # The host makes the page tables of each sequence's next token.
    paged = op.kernel.paged if isinstance(op, DecodeStep) else op.paged
    return op.batch * processor.sequence_s if paged else 0.0


def _step_s(processor: ProcessorSpec, op: DecodeStep | OutputHead) -> Number:
    return processor.step_s + _paging_s(processor, op)


def priced(
    op: type,
    *,
    passes: Callable[[Arithmetic], float] = _none,
    features: Mapping[str, Feature] | None = None,
    fixed_s: Callable[[ProcessorSpec, Any], Number] = _none,
    beside_s: Callable[[ProcessorSpec, Any], Number] = _none,
    eager: Callable[[Any], bool] = lambda op: False,
    compiled: bool = False,
) -> Callable[[Callable[[Arithmetic, Any], list[Work]]], None]:
    """Registers an op with the function below, which gives its works."""

    def register(works: Callable[[Arithmetic, Any], list[Work]]) -> None:
        table = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op.__name__).lower()
        RULES[op] = OpRule(table, works, passes, features or {}, fixed_s, beside_s, eager, compiled)

    return register


# --- prefill -----------------------------------------------------------------------------------------------------


def _blocks_and_density(blocks: Callable[[Any, Arithmetic], Number]) -> dict[str, Feature]:
    """`blocks` are one KV head's active blocks, `density` their share of the causal ones."""
    return {
        "context": "context_tokens",
        "density": lambda op, a: blocks(op, a) / causal_blocks(op.tokens, op.context_tokens),
        "blocks": blocks,
        "tokens": "tokens",
    }


_OF_A_HEAD = _blocks_and_density(lambda op, a: op.active_blocks)
_OF_ALL_HEADS = _blocks_and_density(lambda op, a: op.active_blocks / a.kv_heads)


@priced(PrefillHead, passes=lambda a: 1 / a.kv_heads, features=_OF_A_HEAD, compiled=True)
def _prefill_head(a: Arithmetic, op: PrefillHead) -> list[Work]:
    # 1 for an inner layer; at the last one nothing but the projection that emits K and V (IV-C: t_proj).
    inner = 1 - op.final_layer
    rest_flop = inner * (a.layer_flop - a.projection_flop)
    rest_bytes = inner * (a.layer_bytes(op.tokens) - a.projection_bytes)
    flop = op.tokens * ((a.projection_flop + rest_flop) / a.kv_heads)
    products = a.multiply(op.tokens, flop, (a.projection_bytes + rest_bytes) / a.kv_heads, inner / a.kv_heads)
    return [a.blocks(op.active_blocks * inner), *products]


@priced(Project, features={"tokens": "tokens"}, compiled=True)
def _project(a: Arithmetic, op: Project) -> list[Work]:
    return [("gemm", op.tokens * a.projection_flop, a.projection_bytes)]


@priced(Advance, passes=_one_layer, features=_OF_ALL_HEADS, compiled=True)
def _advance(a: Arithmetic, op: Advance) -> list[Work]:
    flop = op.tokens * (a.layer_flop - a.projection_flop)
    return [a.blocks(op.active_blocks), *a.multiply(op.tokens, flop, a.layer_bytes(op.tokens) - a.projection_bytes)]


# Tables are of one prompt: several are read as one of all their tokens, whose attention is dearer than theirs.
_OF_PROMPTS: dict[str, Feature] = {"context": "context_tokens", "tokens": lambda op, a: op.tokens * op.batch}


@priced(Prefill, passes=_all_layers, features=_OF_PROMPTS, compiled=True)
def _prefill(a: Arithmetic, op: Prefill) -> list[Work]:
    _, *products = a.layer(op.batch, op.tokens, op.context_tokens)
    attended = ((n, a.attend_prompt(op.batch, op.tokens, op.context_tokens, window)) for n, window in a.spans)
    return [
        *((kernel, n * flop, n * n_bytes) for n, (kernel, flop, n_bytes) in attended),
        *((kernel, a.layers * flop, a.layers * n_bytes) for kernel, flop, n_bytes in products),
        ("gemv", op.batch * a.head_flop, a.head_bytes),
    ]


@priced(PrefillLayer, passes=_one_layer)
def _prefill_layer(a: Arithmetic, op: PrefillLayer) -> list[Work]:
    scores = op.kernel.score_bytes * op.batch * op.tokens * (op.tokens + op.context_tokens) * a.model.query_heads
    # What is held of the scores is written once and read once.
    written: list[Work] = [("gather", 0, 2 * scores)] if op.kernel.score_bytes else []
    return [*a.layer(op.batch, op.tokens, op.context_tokens, op.window_tokens), *written]


@priced(Decompose)
def _decompose(a: Arithmetic, op: Decompose) -> list[Work]:
    # R-SVD of a tall matrix (Golub and Van Loan): about 6 m n^2 + 20 n^3 for the factors.
    flop = 6 * op.tokens * a.key_width**2 + 20 * a.key_width**3
    return [("svd", op.batch * flop, op.batch * op.tokens * a.score_bytes)]


@priced(Cluster, features={"tokens": "tokens", "clusters": "clusters", "batch": "batch"})
def _cluster(a: Arithmetic, op: Cluster) -> list[Work]:
    # Every round compares each key with the centroids of its own head: a product, as prefill has them.
    products = KMEANS_ROUNDS * op.batch * op.tokens * op.clusters * a.key_width
    return [("product", 2 * products, KMEANS_ROUNDS * op.batch * op.tokens * a.score_bytes)]


# --- decoding ----------------------------------------------------------------------------------------------------


@priced(
    DecodeStep,
    passes=_all_layers,
    features={"context": "context_tokens", "batch": "batch"},
    fixed_s=_step_s,
    eager=lambda op: op.kernel.captured is False,
)
def _decode_step(a: Arithmetic, op: DecodeStep) -> list[Work]:
    attended = ((n, a.attend(op.batch, seen(op.context_tokens, window), op.kernel)) for n, window in a.spans)
    return [
        *((kernel, n * flop, n * n_bytes) for n, works in attended for kernel, flop, n_bytes in works),
        ("gemv", a.layers * op.batch * a.layer_flop, a.layers * a.layer_bytes(op.batch)),
        ("gemv", op.batch * a.head_flop, a.head_bytes),
    ]


@priced(DecodeAttention, features={"context": "attended_tokens", "batch": "batch"})
def _decode_attention(a: Arithmetic, op: DecodeAttention) -> list[Work]:
    attended = a.attend(op.batch, op.attended_tokens, op.kernel)
    # Gathering reads every key and value once and writes it once.
    gathered: Work = ("gather", 0, 2 * op.batch * op.attended_tokens * a.kv_bytes)
    return [gathered, *attended] if op.gathered else attended


# A layer of decoding that is handed over by itself is launched kernel by kernel, unless its step was captured.
@priced(FeedForward, passes=_one_layer, features={"batch": "batch"}, eager=lambda op: not op.captured)
def _feed_forward(a: Arithmetic, op: FeedForward) -> list[Work]:
    flop, n_bytes = op.batch * a.layer_flop, a.layer_bytes(op.batch)
    if not op.routed:
        _, routed_flop, routed_bytes = a.routed(op.batch)
        flop, n_bytes = flop - routed_flop, n_bytes - routed_bytes
    return [("gemv", flop, n_bytes)]


@priced(RoutedExperts)
def _routed_experts(a: Arithmetic, op: RoutedExperts) -> list[Work]:
    return [a.routed(op.batch)]


@priced(ProjectQ, features={"batch": "batch"})
def _project_q(a: Arithmetic, op: ProjectQ) -> list[Work]:
    return [("gemv", op.batch * (a.qkv_flop - a.projection_flop), a.qkv_bytes - a.projection_bytes)]


@priced(ProjectKv, features={"batch": "batch"})
def _project_kv(a: Arithmetic, op: ProjectKv) -> list[Work]:
    return [("gemv", op.batch * a.projection_flop, a.projection_bytes)]


@priced(RestOfLayer, passes=_one_layer, features={"batch": "batch"}, eager=lambda op: not op.captured)
def _rest_of_layer(a: Arithmetic, op: RestOfLayer) -> list[Work]:
    return [("gemv", op.batch * (a.layer_flop - a.qkv_flop), a.layer_bytes(op.batch) - a.qkv_bytes)]


@priced(OutputHead, features={"batch": "batch"}, fixed_s=_step_s)
def _output_head(a: Arithmetic, op: OutputHead) -> list[Work]:
    return [("gemv", op.batch * a.head_flop, a.head_bytes)]


# --- choosing ----------------------------------------------------------------------------------------------------


def _ranked_s(processor: ProcessorSpec, op: Select | Retrieve) -> Number:
    # Softmax and top-k go through a score for each group, in every row that chooses for itself.
    ranked_s = 0.0 if processor.topk_per_s is None else 1 / processor.topk_per_s
    return op.batch * op.heads * op.groups * (ranked_s + (processor.unexplained_score_s or 0.0))


def _keys(op: Select, a: Arithmetic) -> Number:
    # One representative key per group by default.
    return op.groups if op.keys is None else op.keys


@priced(Select, features={"groups": "groups", "keys": _keys, "batch": "batch"}, fixed_s=_ranked_s)
def _select(a: Arithmetic, op: Select) -> list[Work]:
    return [a.score(op.batch * _keys(op, a), op.rank)]


@priced(Retrieve, features={"keys": "tokens", "batch": "batch"}, fixed_s=_ranked_s, beside_s=_paging_s)
def _retrieve(a: Arithmetic, op: Retrieve) -> list[Work]:
    kernel, flop, n_bytes = a.score(op.batch * op.tokens, None)
    alpha = a.model.key_copies
    # Keys are copied once for every query head of a group, and these copies are scored (SpeContext 4.3, 6.2).
    copied: list[Work] = [("gather", 0, (1 + alpha) * n_bytes)] if alpha > 1 else []
    return [("gemv", op.batch * a.retrieval_flop, a.retrieval_bytes), *copied, (kernel, flop, alpha * n_bytes)]


@priced(Assign, features={"centroids": "centroids", "batch": "batch"})
def _assign(a: Arithmetic, op: Assign) -> list[Work]:
    # A key is compared with the centroids of its own head.
    values = op.batch * op.centroids * a.key_width
    return [("scoring", 2 * values, values * a.value_bytes)]


@priced(Split, features={"tokens": "tokens", "batch": "batch"})
def _split(a: Arithmetic, op: Split) -> list[Work]:
    # In every round each key is compared with both centroids of its own row, and added to one of them.
    values = SPLIT_ROUNDS * op.tokens * (a.key_width / op.heads)
    return [("scoring", 6 * values, values * a.value_bytes)]


def _bookkept_s(processor: ProcessorSpec, op: Bookkeep) -> Number:
    most = processor.most_slots
    least = min if isinstance(op.slots, int | float) else np.minimum
    searched = op.slots if most is None else least(op.slots, most)
    return op.blocks * ((processor.block_s or 0.0) + searched * (processor.slot_s or 0.0))


@priced(
    Bookkeep,
    features={"blocks": "blocks", "slots": "slots"},
    fixed_s=_bookkept_s,
)
def _bookkeep(a: Arithmetic, op: Bookkeep) -> list[Work]:
    # Nothing but the host's time, which the runtime gives per KV block (`block_s`) and slot (`slot_s`).
    return []


@priced(Reconstruct)
def _reconstruct(a: Arithmetic, op: Reconstruct) -> list[Work]:
    keys = op.batch * op.tokens
    return [("product", 2 * keys * op.rank * a.key_width, keys * a.score_bytes)]
