"""A model session beside its ceilings: chunked prefill beside the plain forward pass, FlexAttention beside dense
attention, loading beside a copy of the same bytes, decoding beside generate()'s own cache.

One thread of the CPU, timed by its CPU seconds, as others may share the machine. Times do not depend on the weights.
FlexAttention is timed with random masks that keep a given share of the causal blocks.
"""

import warnings
from collections.abc import Callable, Iterator
from time import perf_counter, process_time

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from benchmarks.row import Row, higher, lower
from kvferry.model.attention import BlockSparse, Recorder, dense, masked
from kvferry.model.block_masks import BlockMasks
from kvferry.model.models import random_model
from kvferry.model.session import Session
from kvferry.specs.model import ModelSpec
from kvferry.traces.chunks import KEY_BLOCK, QUERY_BLOCK

SPEC = ModelSpec(
    name="small",
    layers=8,
    hidden=512,
    query_heads=8,
    kv_heads=4,
    head_dim=64,
    ffn=1536,
    vocabulary=4096,
    source="made up, with the proportions of Qwen3-0.6B",
)
CHUNK, TOKENS = 1024, 4096


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Best of a few, after one to warm up."""
    on_gpu = torch.cuda.is_available()
    clock = process_time if torch.get_num_threads() == 1 and not on_gpu else perf_counter
    best = float("inf")
    for n in range(repeats + 1):
        began_s = clock()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        if n:
            best = min(best, clock() - began_s)
    return best


@torch.no_grad()
def prefill(model: PreTrainedModel, context: list[int]) -> Iterator[Row]:
    ids = torch.tensor([context], device=model.device)
    plain_s = seconds(lambda: model(ids, past_key_values=DynamicCache(), logits_to_keep=1))
    yield lower(f"prefill of {len(context)} tokens, plain", plain_s, "s")
    session = Session(model, context, chunk_tokens=CHUNK)

    def chunked() -> None:
        Session(model, context, chunk_tokens=CHUNK, kv=session.kv).prefill()

    yield lower(f"prefill in chunks of {CHUNK} (plain)", seconds(chunked), "s", plain_s)

    def all_layers() -> None:
        again = Session(model, context, chunk_tokens=CHUNK, kv=session.kv)
        again.prefill()
        for t in range(len(again.kv.tokens)):
            again.advance(t, SPEC.layers - 1)

    yield lower("prefill in chunks, all layers to the top (plain)", seconds(all_layers, repeats=1), "s", plain_s)
    wanted = model(ids, logits_to_keep=1).logits[0, -1]
    ahead = Session(model, context[:-1], chunk_tokens=CHUNK)
    ahead.prefill()
    error = float((ahead.read(context[-1:]) - wanted).abs().max() / wanted.std())
    yield lower("next-token logits are off by", error, "deviation")


@torch.no_grad()
def layer(session: Session) -> Iterator[Row]:
    """One layer of the last chunk, in its parts."""
    kv, decoder = session.kv, session.decoder
    t = len(kv.tokens) - 1
    hidden = torch.randn(1, kv.tokens[t], SPEC.hidden, device=kv.device).to(kv.dtype)
    rotary = session._rotary_of(t)
    queries = decoder.queries(1, hidden, rotary)
    for name, work in (
        ("keys and values", lambda: decoder.keys_values(1, hidden, rotary)),
        ("queries", lambda: decoder.queries(1, hidden, rotary)),
        ("attention", lambda: dense(queries, kv, t, 1)),
        ("all above attention", lambda: decoder.above(1, hidden, queries)),
    ):
        yield lower(f"a layer of the last chunk: {name}", 1e3 * seconds(work), "ms")


def loading(session: Session) -> Iterator[Row]:
    kv = session.kv
    chunk = [
        [torch.stack(side) for side in zip(*(kv.chunk(0, l, h) for h in range(kv.heads)))] for l in range(kv.layers)
    ]
    n_bytes = sum(side.nbytes for layer in chunk for side in layer)

    def load() -> None:
        for l, (keys, values) in enumerate(chunk):
            kv.drop(0, l)
            for h in range(kv.heads):
                kv.load(0, l, h, keys[h], values[h])

    flat = torch.cat([side.flatten() for layer in chunk for side in layer])
    into = torch.empty_like(flat)
    load_s, copy_s = seconds(load), seconds(lambda: into.copy_(flat))
    yield higher(
        "loading a token chunk head by head (one copy)", n_bytes / load_s / 1e9, "GB/s", n_bytes / copy_s / 1e9
    )


@torch.no_grad()
def decoding(session: Session, model: PreTrainedModel) -> Iterator[Row]:
    token = torch.tensor([[1]], device=model.device)
    room = session.cache()
    copying = DynamicCache([(layer.keys.clone(), layer.values.clone()) for layer in room.layers])
    room_s, copying_s = (seconds(lambda c=c: model(token, past_key_values=c), repeats=20) for c in (room, copying))
    yield lower("a token decoded in the session's room (a copying cache)", 1e3 * room_s, "ms", 1e3 * copying_s)


def sparse(session: Session) -> Iterator[Row]:
    kv = session.kv
    t, l, rng = len(kv.tokens) - 1, 0, np.random.default_rng(0)
    queries = torch.randn(1, SPEC.query_heads, kv.tokens[t], SPEC.head_dim, device=kv.device).to(kv.dtype)
    dense_ms = 1e3 * seconds(lambda: dense(queries, kv, t, l))
    yield lower("attention of the last chunk, dense", dense_ms, "ms")
    record_ms = 1e3 * seconds(lambda: Recorder()(queries, kv, t, l), repeats=1)
    yield lower("attention, dense and its mask recorded (dense)", record_ms, "ms", dense_ms)
    for share in (1.0, 0.5, 0.25, 0.1, 0.05):
        masks, real = random_masks(kv.tokens, share, rng)
        attention = BlockSparse(masks)
        got = attention(queries, kv, t, l)  # compiles
        kind = "FlexAttention" if attention.compiled else "not compiled"
        how = f"attention, {share:.0%} of the blocks ({real:.0%} with the diagonal), {kind}"
        off = float((got - masked(queries, kv, t, l, masks.active(t, l))).abs().max())
        took_s = seconds(lambda attention=attention: attention(queries, kv, t, l))
        yield lower(f"{how} (dense)", 1e3 * took_s, "ms", dense_ms)
        yield lower(f"{how}, off by", off, "")


def random_masks(tokens: tuple[int, ...], share: float, rng: np.random.Generator) -> tuple[BlockMasks, float]:
    """For the last chunk that share of its blocks and its diagonal; and what share that is of the causal ones."""
    active, start = {}, 0
    for t, chunk in enumerate(tokens):
        end = start + chunk
        rows, columns = -(-chunk // QUERY_BLOCK), -(-end // KEY_BLOCK)
        last = (np.minimum(start + QUERY_BLOCK * (np.arange(rows) + 1), end) - 1) // KEY_BLOCK
        causal = np.arange(columns) <= last[:, None]
        near = causal & (np.arange(columns) > last[:, None] - 2)
        kept = (rng.random((SPEC.kv_heads, rows, columns)) < share) & causal | near
        active[t, 0] = kept
        start = end
    return BlockMasks.of(active, np.array(tokens)), float(kept.sum() / (SPEC.kv_heads * causal.sum()))


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)
    model = random_model("qwen3", SPEC, seed=0, dtype="float32")
    context = np.random.default_rng(0).integers(0, SPEC.vocabulary, TOKENS).tolist()
    yield from prefill(model, context)
    session = Session(model, context, chunk_tokens=CHUNK)
    session.prefill()
    yield from layer(session)
    yield from loading(session)
    yield from decoding(session, model)
    yield from sparse(session)
