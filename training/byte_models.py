"""The bundled models, and a forward pass of the same arithmetic that trains fast on a CPU or a GPU."""

import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 260  # 256 bytes and four special tokens
TRAINED_TOKENS = 2048
CONTEXT_TOKENS = 8192
SHORT_TOKENS = 512


def config(hidden: int, ffn: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e5,
            "factor": CONTEXT_TOKENS / TRAINED_TOKENS,
            "original_max_position_embeddings": TRAINED_TOKENS,
            "attention_factor": 1.26,
        },
        tie_word_embeddings=True,
        initializer_range=0.02,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
        dtype="bfloat16",
    )


# byte-long has byte-large's dimensions, and went on learning from its weights at 8K.
CONFIGS = {"byte-large": config(192, 512), "byte-long": config(192, 512), "byte-small": config(128, 384)}


def new_model(name: str, seed: int) -> Qwen3ForCausalLM:
    """In float32. What writes into the residual stream starts smaller, as it is added 16 times."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(CONFIGS[name]).float()
    with torch.no_grad():
        model.model.embed_tokens.weight[256:] *= 0.1
        for layer in model.model.layers:
            for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                weight /= (2 * len(model.model.layers)) ** 0.5
    return model


def rotations(model: Qwen3ForCausalLM, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [batch, 1, tokens, head_dim] of positions [batch, tokens], with YaRN's scale."""
    cos, sin = model.model.rotary_emb(torch.zeros(1, device=positions.device), positions)
    return cos.unsqueeze(1), sin.unsqueeze(1)


def loss(
    model: Qwen3ForCausalLM, ids: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Mean cross entropy in nats over the targets, by their weights; all are [batch, tokens]."""
    cos, sin = rotations(model, positions)
    x = F.embedding(ids, model.model.embed_tokens.weight)
    for layer in model.model.layers:
        attention, ffn = layer.self_attn, layer.mlp
        x = _layer(
            x,
            cos,
            sin,
            layer.input_layernorm.weight,
            attention.q_proj.weight,
            attention.k_proj.weight,
            attention.v_proj.weight,
            attention.q_norm.weight,
            attention.k_norm.weight,
            attention.o_proj.weight,
            layer.post_attention_layernorm.weight,
            ffn.gate_proj.weight,
            ffn.up_proj.weight,
            ffn.down_proj.weight,
        )
    return _head(x, model.model.norm.weight, model.model.embed_tokens.weight, targets, weights)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attend_short(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same in query blocks; on a CPU its backward pass is three times as fast where sequences are short.

    The largest score is not taken off first: normalised queries and keys keep scores far from overflow.
    """
    batch, heads, tokens, width = q.shape
    rows, groups = batch * k.shape[1], heads // k.shape[1]
    q = (q * width**-0.5).reshape(rows, groups, tokens, width)
    keys = k.reshape(rows, tokens, width).transpose(1, 2)
    values = F.pad(v.reshape(rows, tokens, width), (0, 1), value=1.0)  # its last column sums the weights
    places, outputs = torch.arange(tokens, device=q.device), []
    for begin in range(0, tokens, 128):
        end = min(tokens, begin + 128)
        scores = torch.bmm(q[:, :, begin:end].reshape(rows, groups * (end - begin), width), keys[:, :, :end])
        scores = scores.view(rows, groups, end - begin, end)
        weights = torch.where(places[begin:end, None] >= places[None, :end], scores.exp(), 0.0)
        sums = torch.bmm(weights.view(rows, groups * (end - begin), end), values[:, :end])
        outputs.append(sums.view(rows, groups, end - begin, width + 1))
    summed = torch.cat(outputs, 2).view(batch, heads, tokens, width + 1).float()
    return (summed[..., :width] / summed[..., width:]).to(q.dtype)


@torch.compile(dynamic=False)
def _layer(x, cos, sin, norm1, wq, wk, wv, qn, kn, wo, norm2, gate, up, down):  # type: ignore[no-untyped-def]
    batch, tokens, _ = x.shape
    half = torch.bfloat16
    y = _norm(x, norm1).to(half)
    q = (y @ wq.to(half).T).view(batch, tokens, -1, 32).transpose(1, 2).float()
    k = (y @ wk.to(half).T).view(batch, tokens, -1, 32).transpose(1, 2).float()
    v = (y @ wv.to(half).T).view(batch, tokens, -1, 32).transpose(1, 2)
    q, k = _turned(_norm(q, qn), cos, sin).to(half), _turned(_norm(k, kn), cos, sin).to(half)
    o = _attend_short(q, k, v) if tokens <= SHORT_TOKENS else _attend(q, k, v)
    x = x + (o.transpose(1, 2).reshape(batch, tokens, -1) @ wo.to(half).T).float()
    y = _norm(x, norm2).to(half)
    return x + ((F.silu(y @ gate.to(half).T) * (y @ up.to(half).T)) @ down.to(half).T).float()


@torch.compile(dynamic=False)
def _head(x, norm, embedding, targets, weights):  # type: ignore[no-untyped-def]
    logits = (_norm(x, norm).to(torch.bfloat16) @ embedding.to(torch.bfloat16).T).float()
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (nats * weights.flatten()).sum() / weights.sum()
