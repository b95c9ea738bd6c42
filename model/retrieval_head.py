"""The retrieval head: embedding and QK projection of a one-layer draft model (SpeContext 4.3).

Its file `retrieval_head.safetensors` lies beside the weights of the model that it was distilled from
(training/distil_head.py). Tokens of the bundled models are bytes and say little alone, so the draft model's embedding
of a token is made of the model's own embeddings of the last few tokens: each reduced to a few numbers, side by side.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from kvferry.model.decoder import Decoder, Rotary, rotated
from kvferry.model.decoders import decoder_of
from kvferry.specs.errors import InputError

FILE = "retrieval_head.safetensors"
_EPSILON = 1e-6
_NAMES = ("reduce.weight", "norm", "q_proj.weight", "k_proj.weight", "q_norm", "k_norm")


class RetrievalHead(nn.Module):  # type: ignore[misc]
    """Queries and keys of tokens from their ids alone, before the model computes anything.

    ``embedding`` float[vocabulary, hidden] is the model's own and no part of the head. A token's input is that of the
    last ``window`` tokens, ``width`` numbers of each.
    """

    embedding: torch.Tensor

    def __init__(
        self,
        embedding: torch.Tensor,
        *,
        window: int,
        width: int,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        super().__init__()
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.window, self.query_heads, self.kv_heads, self.head_dim = window, query_heads, kv_heads, head_dim
        inputs = window * width
        self.reduce = nn.Linear(embedding.shape[1], width, bias=False)
        self.norm = nn.Parameter(torch.ones(inputs))
        self.q_proj = nn.Linear(inputs, query_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, kv_heads * head_dim, bias=False)
        self.q_norm = nn.Parameter(torch.ones(head_dim))
        self.k_norm = nn.Parameter(torch.ones(head_dim))

    @property
    def parameter_count(self) -> int:
        """Without the embedding, which is the model's."""
        return sum(one.numel() for one in self.parameters())

    def inputs(self, ids: torch.Tensor, new: int) -> torch.Tensor:
        """float[sequences, new, window * width] of the last `new` of the tokens int[sequences, tokens]; of tokens
        before the first there is nothing."""
        ids = ids[:, -(new + self.window - 1) :]
        few = self.reduce(F.embedding(ids, self.embedding))
        few = F.pad(few, (0, 0, new + self.window - 1 - few.shape[1], 0))
        return few.unfold(1, self.window, 1).mT.flatten(2)

    def projected(self, inputs: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [sequences, query heads, tokens, head_dim] and keys [sequences, KV heads, tokens, head_dim] of
        inputs as `inputs` gives them, at the positions of `rotary`, the model's own."""
        normed = _normed(inputs, self.norm)
        queries = _normed(self.q_proj(normed).unflatten(-1, (-1, self.head_dim)), self.q_norm).transpose(1, 2)
        keys = _normed(self.k_proj(normed).unflatten(-1, (-1, self.head_dim)), self.k_norm).transpose(1, 2)
        return rotated(queries, rotary), rotated(keys, rotary)

    def save(self, folder: Path) -> None:
        """Write `FILE` into a folder, in bfloat16."""
        held = self.state_dict()
        tensors = {name: held[name].to(torch.bfloat16).contiguous() for name in _NAMES}
        part = folder / f"{FILE}.part"
        save_file(tensors, part, metadata={"format": "pt"})
        part.replace(folder / FILE)


def load_head(model: PreTrainedModel) -> RetrievalHead:
    """The head that lies in the model's folder, in single precision on the model's device.

    Raises InputError where there is none, for a damaged file, and for one that is another model's.
    """
    path = Path(model.config.name_or_path) / FILE
    if not path.is_file():
        raise InputError(
            f"policies.selector: {path.parent} has no {FILE}; training/distil_head.py makes one of a model's folder"
        )
    try:
        with safe_open(path, framework="pt") as file:
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the library raises its own and the system's
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    lacking = sorted(set(_NAMES) - set(held))
    if lacking:
        raise InputError(f"{path}: {', '.join(lacking)} missing; training/distil_head.py writes it again")
    decoder = decoder_of(model)
    _check(path, held, decoder)
    held = {name: _sound(path, name, held[name]) for name in _NAMES}
    width = len(held["reduce.weight"])
    head = _new(model, window=len(held["norm"]) // width, width=width)
    head.load_state_dict(held)
    return _ready(head, decoder)


def random_head(model: PreTrainedModel, seed: int, *, window: int = 4, width: int = 8) -> RetrievalHead:
    """A head of drawn weights, for a model of drawn weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = _new(model, window=window, width=width)
    return _ready(head, decoder_of(model))


def _new(model: PreTrainedModel, *, window: int, width: int) -> RetrievalHead:
    decoder = decoder_of(model)
    return RetrievalHead(
        model.model.embed_tokens.weight.float().cpu(),
        window=window,
        width=width,
        query_heads=model.config.num_attention_heads,
        kv_heads=decoder.heads,
        head_dim=decoder.head_dim,
    )


def _ready(head: RetrievalHead, decoder: Decoder) -> RetrievalHead:
    return head.to(decoder.device).eval().requires_grad_(False)


def _check(path: Path, held: dict[str, torch.Tensor], decoder: Decoder) -> None:
    config, d = decoder.model.config, decoder.head_dim
    width, inputs = held["reduce.weight"].shape[:1].numel(), held["norm"].numel()
    wanted = {
        "reduce.weight": (width, config.hidden_size),
        "norm": (max(inputs // width, 1) * width if width else 1,),
        "q_proj.weight": (config.num_attention_heads * d, inputs),
        "k_proj.weight": (decoder.heads * d, inputs),
        "q_norm": (d,),
        "k_norm": (d,),
    }
    differ = [
        f"{name} {list(held[name].shape)} instead of {list(shape)}"
        for name, shape in wanted.items()
        if tuple(held[name].shape) != shape
    ]
    if differ:
        raise InputError(
            f"{path}: is not a retrieval head of {config.name_or_path}, whose {config.num_attention_heads} query heads"
            f" and {decoder.heads} KV heads have {d} numbers each: {'; '.join(differ)}; training/distil_head.py makes"
            " one"
        )


def _sound(path: Path, name: str, weights: torch.Tensor) -> torch.Tensor:
    if not weights.is_floating_point():
        kind = str(weights.dtype).removeprefix("torch.")
        raise InputError(f"{path}: {name} has weights of type {kind}; float32, bfloat16 and float16 are supported")
    single = weights.float()
    if not single.isfinite().all():
        raise InputError(f"{path}: is damaged: {name} has weights that are infinite or no numbers")
    return single


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPSILON) * weight
