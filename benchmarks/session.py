"""A model session beside its ceilings: chunked prefill beside the plain forward pass, FlexAttention beside dense
attention, loading beside a copy of the same bytes, decoding beside generate()'s own cache.

python benchmarks/session.py [--dtype float32] [--threads 1] [--tokens 4096] [--device cpu] [--model FOLDER]

One thread on the CPU is timed by its CPU seconds, as others may share the machine. Times do not depend on the weights,
but what a mask keeps does: FlexAttention is timed with random masks that keep a given share of the causal blocks, and
masks from attention mass are made on the bytes of a Python file, which only a byte-level --model makes sense of.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from kvferry.backends.live.model.attention import BlockSparse, Recorder, dense, masked
from kvferry.backends.live.model.block_masks import BlockMasks
from kvferry.backends.live.model.models import load_model, random_model
from kvferry.backends.live.model.recording import record
from kvferry.backends.live.model.session import Session
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
CHUNK = 1024


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
def prefill(model: PreTrainedModel, context: list[int]) -> Session:
    ids = torch.tensor([context], device=model.device)
    plain_s = seconds(lambda: model(ids, past_key_values=DynamicCache(), logits_to_keep=1))
    session = Session(model, context, chunk_tokens=CHUNK)

    def chunked() -> None:
        Session(model, context, chunk_tokens=CHUNK, kv=session.kv).prefill()

    chunked_s = seconds(chunked)
    wanted = model(ids, logits_to_keep=1).logits[0, -1]
    ahead = Session(model, context[:-1], chunk_tokens=CHUNK)
    ahead.prefill()
    error = float((ahead.read(context[-1:]) - wanted).abs().max() / wanted.std())
    print(f"prefill of {len(context)} tokens, plain         {plain_s:8.3f} s   (the ceiling)")
    print(f"  in chunks of {CHUNK}, last layer projected {chunked_s:8.3f} s   {chunked_s / plain_s:.2f} of plain")

    def all_layers() -> None:
        again = Session(model, context, chunk_tokens=CHUNK, kv=session.kv)
        again.prefill()
        for t in range(len(again.kv.tokens)):
            again.advance(t, SPEC.layers - 1)

    all_s = seconds(all_layers, repeats=1)
    print(f"  in chunks, all layers to the top     {all_s:8.3f} s   {all_s / plain_s:.2f} of plain")
    print(f"  next-token logits differ by {error:.1e} of their deviation")
    return session


def steps(session: Session) -> None:
    kv, decoder = session.kv, session.decoder
    t = len(kv.tokens) - 1
    hidden = torch.randn(1, kv.tokens[t], SPEC.hidden, device=kv.device).to(kv.dtype)
    rotary = session._rotary_of(t)
    with torch.no_grad():
        queries = decoder.queries(1, hidden, rotary)
        project_s = seconds(lambda: decoder.keys_values(1, hidden, rotary))
        attention_s = seconds(lambda: dense(queries, kv, t, 1))
        rest_s = seconds(lambda: decoder.above(1, hidden, queries)) + seconds(
            lambda: decoder.queries(1, hidden, rotary)
        )
    share = project_s / (project_s + rest_s)
    print(
        f"one layer of the last chunk: project {project_s * 1e3:.1f} ms ({share:.0%} of the dense operators), advance"
    )
    print(f"  {attention_s * 1e3:.1f} ms of attention and {rest_s * 1e3:.1f} ms of all else")


def loading(session: Session) -> None:
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
    print(f"loading a token chunk head by head: {n_bytes / load_s / 1e9:.2f} GB/s, {copy_s / load_s:.0%} of one memcpy")


@torch.no_grad()
def decoding(session: Session, model: PreTrainedModel) -> None:
    token = torch.tensor([[1]], device=model.device)
    room = session.cache()
    plain = DynamicCache([(layer.keys.clone(), layer.values.clone()) for layer in room.layers])
    room_s, plain_s = (seconds(lambda c=c: model(token, past_key_values=c), repeats=20) for c in (room, plain))
    print(
        f"a token decoded: {room_s * 1e3:.2f} ms in the session's room, {plain_s * 1e3:.2f} ms with a cache that copies"
    )


def sparse(session: Session) -> None:
    kv = session.kv
    t, l, rng = len(kv.tokens) - 1, 0, np.random.default_rng(0)
    queries = torch.randn(1, SPEC.query_heads, kv.tokens[t], SPEC.head_dim, device=kv.device).to(kv.dtype)
    dense_s = seconds(lambda: dense(queries, kv, t, l))
    print(f"attention of the last chunk, dense  {dense_s * 1e3:8.1f} ms   (1.00)")
    record_s = seconds(lambda: Recorder()(queries, kv, t, l), repeats=1)
    print(f"  dense, and its mask recorded      {record_s * 1e3:8.1f} ms   ({record_s / dense_s:.2f})")
    for share in (1.0, 0.5, 0.25, 0.1, 0.05):
        masks, real = random_masks(kv.tokens, share, rng)
        attention = BlockSparse(masks)
        began_s = perf_counter()
        got = attention(queries, kv, t, l)
        first_s = perf_counter() - began_s
        off = float((got - masked(queries, kv, t, l, masks.active(t, l))).abs().max())
        sparse_s = seconds(lambda attention=attention: attention(queries, kv, t, l))
        how = "FlexAttention" if attention.compiled else "not compiled "
        print(
            f"  {real:4.0%} of the blocks, {how} {sparse_s * 1e3:8.1f} ms   ({sparse_s / dense_s:.2f})"
            f"   first call {first_s:.1f} s, off by {off:.1e}"
        )


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


def from_mass(model: PreTrainedModel, tokens: int) -> None:
    """What a mask that holds 98 % of the mass keeps, and what leaving out the rest costs in the answer."""
    text = list(Path(argparse.__file__).read_bytes()[:tokens])
    recorded = record(model, text[:-1], chunk_tokens=CHUNK)
    trace, wanted = recorded.chunks, recorded.session.read(text[-1:])
    kept = trace.active_blocks / trace.causal_blocks[:, None, None]
    session = Session(model, text[:-1], chunk_tokens=CHUNK, attention=BlockSparse(recorded.masks))
    session.prefill()
    got = session.read(text[-1:])
    heads = kept.mean(axis=0)
    print(
        f"masks from mass, {len(text)} bytes of Python: 98 % is held by {kept.mean():.0%} of the blocks, by head from"
    )
    print(f"  {heads.min():.0%} to {heads.max():.0%}; entropy {trace.entropy_bits.mean():.2f} bits per value")
    off, same = float((got - wanted).abs().max() / wanted.std()), bool(got.argmax() == wanted.argmax())
    print(f"  sparse prefill: logits off by {off:.1e} of their deviation, same first token: {same}")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--dtype", default="float32")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--tokens", type=int, default=4096)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--model", help="a folder with a byte-level model, for the masks from mass")
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore", DeprecationWarning)
    print(f"{SPEC.parameters / 1e6:.0f} M random weights, {given.dtype}, {given.device}, {given.threads} threads")
    model = random_model("qwen3", SPEC, seed=0, dtype=given.dtype, device=given.device)
    context = np.random.default_rng(0).integers(0, SPEC.vocabulary, given.tokens).tolist()
    session = prefill(model, context)
    steps(session)
    loading(session)
    decoding(session, model)
    sparse(session)
    real = load_model(given.model, given.dtype, given.device) if given.model else model
    from_mass(real, given.tokens)


if __name__ == "__main__":
    main()
