"""What an engine takes of a device's memory besides KV, by name: weights, itself, activations and logits.

Sizes follow from the model's dimensions and from the tokens that pass a layer together, as an engine finds them before
it grants KV the rest: vLLM by a profile run with as many tokens as it batches, llama.cpp by the compute buffer of a
graph of ``n_ubatch`` tokens. Both keep that memory for the whole run, and so does this.
"""

from kvferry.policies.decode.pages import PageSizes
from kvferry.policies.ledger import KEPT_FREE, Holding, Ledger
from kvferry.policies.offload import Offload
from kvferry.specs.assist import AssistSpec
from kvferry.specs.budget import DecodeBudget
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.session import SessionSpec
from kvferry.specs.workload import MOST_BATCH, DecodeSpec

# A logit as it is sampled from, in single precision (vLLM's and transformers' `logits.float()`).
_SAMPLED_BYTES = 4
# Pieces of KV that blocks of threads attend to apart, at most (flash-attention: num_splits_heuristic).
_MOST_SPLITS = 128


def value_bytes(model: ModelSpec) -> float:
    """Returns the bytes of an activation's number: 16 bits, or those of embeddings that have more."""
    return max(2.0, model.embedding_bits / 8)


def activation_bytes(model: ModelSpec, tokens: int) -> float:
    """Returns the bytes of one layer's tensors for `tokens` that pass it together.

    The residual stream and its norm (2 x hidden) stand beside the larger of two: gate, up and their product
    (3 x ffn; vLLM's LlamaMLP: the output of gate_up_proj and that of SiluAndMul), or queries, keys, values and the
    heads' output (2 x query heads x head_dim + KV). Of a mixture, every expert that a token passes has its own. The
    next layer uses the same memory.
    """
    experts = model.experts
    ffn = model.ffn if experts is None else max(model.ffn, (experts.shared + experts.active) * experts.ffn)
    attention = model.query_heads * (model.head_dim + model.value_dim) + model.kv_entry_values
    return tokens * (2 * model.hidden + max(3 * ffn, attention)) * value_bytes(model)


def logits_bytes(model: ModelSpec, sequences: int) -> float:
    """Returns the bytes of the logits of every sequence's last token, as computed and as sampled from; those of other
    tokens of a prompt are not computed (vLLM's logits indices, `num_logits_to_keep` of transformers)."""
    return sequences * model.vocabulary * (value_bytes(model) + _SAMPLED_BYTES)


def split_bytes(model: ModelSpec) -> float:
    """Returns the bytes of the partial results of attention whose KV is split among blocks of threads: for every query
    head and piece an output in single precision and its log-sum (flash-attention's out_accum and lse_accum)."""
    return _MOST_SPLITS * model.query_heads * (model.value_dim + 1) * 4


def passing_tokens(scenario: Scenario) -> int:
    """Returns how many tokens of prompts pass a layer together: a chunk, or less where there are not as many. An NPU
    runs no larger shape than was compiled."""
    workload, chunk = scenario.workload, scenario.budget.prefill_chunk
    if isinstance(workload, SessionSpec):
        # Prompts grow from turn to turn.
        return chunk or workload.context + workload.beginning + workload.question
    prompt = workload.prompt if isinstance(workload, AssistSpec) else workload.context
    sizes = [chunk or prompt, *scenario.device.processors[scenario.device.main].compiled_tokens[-1:]]
    if workload.trace is None and not workload.spread and not getattr(workload, "lengths", None):
        # All are as long as is said.
        sizes.append(prompt * sequences_of(scenario))
    return min(sizes)


def sequences_of(scenario: Scenario) -> int:
    """Returns how many sequences have logits at a time, at most."""
    batch = scenario.workload.batch if isinstance(scenario.workload, DecodeSpec) else 1
    return MOST_BATCH if batch == "max" else batch


def offload_of(scenario: Scenario) -> Offload | None:
    """Returns which weights lie elsewhere; None: none do. As few as leave room for the KV of all that decode together,
    where the scenario leaves it open; with batch `max` for one sequence."""
    spec = scenario.budget.offload if isinstance(scenario.budget, DecodeBudget) else None
    if spec is None or not isinstance(scenario.workload, DecodeSpec):
        return None
    model, workload = scenario.model, scenario.workload
    sequences = 1 if workload.batch == "max" else workload.batch
    tokens = workload.context + workload.output
    granted_bytes = scenario.budget.memory_bytes or scenario.device.memory.free_bytes
    room_bytes = granted_bytes - besides_weights_bytes(scenario)

    def kv_bytes(near: ModelSpec) -> float:
        pages = PageSizes(near)
        return sequences * pages.of(tokens) * pages.page_bytes

    return Offload.fitting(spec, model, room_bytes, kv_bytes)


def engine_holdings(scenario: Scenario) -> tuple[Holding, ...]:
    """Returns what a machine's memory holds before any KV, from beginning to end. `scenario`: as the machine sees
    it."""
    offload = offload_of(scenario)
    weights = (Holding.of("weights", scenario.model.weight_bytes),) if offload is None else offload.holdings
    return (*weights, *_besides_weights(scenario))


def besides_weights_bytes(scenario: Scenario) -> float:
    """Returns what an engine holds besides weights and KV. Partial results of attention that splits KV, few bytes, are
    counted whatever attends."""
    return Ledger(_besides_weights(scenario)).n_bytes(0) + split_bytes(scenario.model)


def _besides_weights(scenario: Scenario) -> tuple[Holding, ...]:
    model, memory = scenario.model, scenario.device.memory
    granted_bytes = scenario.budget.memory_bytes or memory.free_bytes
    return (
        Holding.of("runtime", scenario.device.runtime_bytes),
        Holding.of("workspace: activations", activation_bytes(model, passing_tokens(scenario))),
        Holding.of("workspace: logits", logits_bytes(model, sequences_of(scenario))),
        Holding.of(KEPT_FREE, memory.margin_share * granted_bytes),
    )
