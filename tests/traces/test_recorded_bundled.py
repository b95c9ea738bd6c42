"""The traces recorded from a real model that come with the project fit its description, and feed what reads them."""

import numpy as np

from kvferry.scenarios.loader import load_model
from kvferry.traces.chunks import ChunkTrace
from kvferry.traces.keys import KeyStream
from kvferry.traces.resolve import BUNDLED
from kvferry.traces.selections import SelectionStream

MODEL = load_model("byte-large")


def test_chunks() -> None:
    trace = ChunkTrace.load(BUNDLED / "byte-large-chunks.npz")
    assert trace.shape == (8, MODEL.layers, MODEL.kv_heads)
    assert (trace.tokens == 512).all()
    # Normalised keys spread over all of their range: nothing here is under the four bits at which traces end.
    assert trace.entropy_bits.min() > 3.5
    # Attention differs from chunk to chunk.
    shares = trace.active_blocks / trace.causal_blocks[:, None, None]
    assert shares.min() < 0.5 < shares.max()


def test_selections() -> None:
    stream = SelectionStream.load(BUNDLED / "byte-large-selections.npz")
    assert stream.ids.shape == (64, MODEL.layers, MODEL.kv_heads, 100)
    assert stream.groups == 4096 // 4
    by_chance = 100 / stream.groups
    assert stream.overlaps().min() > 2 * by_chance


def test_keys() -> None:
    vectors = KeyStream.load(BUNDLED / "byte-large-keys.npz").vectors
    assert vectors.shape == (MODEL.layers, MODEL.kv_heads, 512, MODEL.head_dim)
    # Recorded in bfloat16: no more digits than that.
    assert not np.any(vectors.view(np.uint32) & 0xFFFF)


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLED.glob("byte-large-*.npz")) < 2e6
