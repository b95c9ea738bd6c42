"""Kernels of attention: what each copies, reads and keeps besides the KV itself, stated once per kernel.

The share of the memory bandwidth that each kind of kernel reaches is the processor's (its profile's ``efficiency``).
"""

from dataclasses import dataclass

from kvferry.specs.engine import Kernel
from kvferry.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """One way to compute attention over KV in the processor's memory.

    ``reads``: the kind of kernel that reads keys and values for a new token. ``grown``: KV is one tensor per layer, to
    which each token is joined by a copy of all of it (torch.cat in the DynamicCache of Hugging Face transformers); a
    latent cache is brought up to keys and values of every head in every step (its expand_kv), where other kernels
    attend to the latent vectors themselves, with absorbed matrices (DeepSeek-V2, 2.1.2).
    ``repeated``: KV heads are copied once for every query head that shares them (its repeat_kv), and attention reads
    these copies. ``score_bytes``: what prefill holds of every pair of tokens and query head; 0: scores never leave the
    kernel. ``paged``: KV lies in pages, whose tables the host makes for every step. ``captured``: whole steps are
    captured and launched at once, or every kernel by itself; None: whole steps are captured, and layers that are handed
    over one by one are not. ``Roles.captured`` says in which layers it can be so.
    """

    reads: Kernel = "decode_attention"
    grown: bool = False
    repeated: bool = False
    score_bytes: float = 0.0
    paged: bool = False
    captured: bool | None = None

    @property
    def needs_memory(self) -> bool:
        """Takes memory besides the KV itself."""
        return self.grown or self.repeated or self.score_bytes > 0

    def expands(self, model: ModelSpec) -> bool:
        """Makes keys and values of every query head before attention reads them."""
        return self.repeated or (self.grown and model.latent is not None)

    def copied(self, model: ModelSpec) -> float:
        """Returns bytes that are moved to copy KV before a new token attends, per byte of KV: joined, all is read and
        written; expanded, it is read once and written for every query head."""
        return 2.0 * self.grown + (1.0 + model.expansion) * self.expands(model)

    def attended(self, model: ModelSpec) -> float:
        """Returns the bytes that attention itself reads, per byte of KV."""
        return model.expansion if self.expands(model) else 1.0

    def prefill_bytes(self, model: ModelSpec, batch: int, tokens: int) -> float:
        """Returns memory for the scores of one layer, of `batch` prompts that are prefilled together."""
        return self.score_bytes * batch * model.query_heads * tokens**2

    def decode_bytes(self, model: ModelSpec, tokens: float) -> float:
        """Returns memory for the copies of one layer's KV, of `tokens` over all sequences."""
        copies = 1.0 * self.grown + model.expansion * self.expands(model)
        return copies * tokens * model.kv_entry_bytes


# Scores in 16 bits, their softmax in 32 and its cast to 16 are there together (modeling_llama.py's eager attention).
EAGER = AttentionKernel(reads="unsplit_attention", grown=True, repeated=True, score_bytes=8.0, captured=False)
# One block per sequence and head reads all of its KV: FlashAttention-2 as transformers calls it.
FLASH = AttentionKernel(reads="unsplit_attention", grown=True, captured=False)
# The same over room that is set aside beforehand, so that nothing is copied (its kv-cache call).
IN_PLACE = AttentionKernel(reads="unsplit_attention")
# Pages, split among blocks; decoding steps are captured as CUDA graphs (FlashInfer).
PAGED = AttentionKernel(paged=True, captured=True)
