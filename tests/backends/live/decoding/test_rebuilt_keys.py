"""Keys at a low rank: what is rebuilt of them, where, and how far off it is."""

from typing import Any

import numpy as np
import pytest

from kvferry.layouts.layout import Layout

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SEQUENCES, KV_HEADS, WIDTH, GROUP, TOKENS = 2, 2, 16, 4, 48


@pytest.fixture(scope="module")
def keys(model: Any) -> Any:
    """[sequences, KV heads, tokens, head_dim] of the middle layer, with their rotary embedding."""
    from kvferry.backends.live.decoding.indexes.index import sampled
    from kvferry.model.decoder import Decoder

    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (SEQUENCES, TOKENS)))
    return list(sampled(Decoder(model), ids))[1].keys


def rebuilding(model: Any, rank: int, heads: int) -> Any:
    from kvferry.backends.live.decoding.block_format import BlockFormat
    from kvferry.backends.live.decoding.rebuilt_keys import RebuiltKeys
    from kvferry.model.decoder import Decoder

    block_bytes = KV_HEADS // heads * GROUP * WIDTH * 4
    layout = Layout(layers=1, sequences=SEQUENCES, blocks=TOKENS // GROUP, block_bytes=block_bytes, heads=heads)
    format = BlockFormat(
        layout, group_tokens=GROUP, kv_heads=KV_HEADS, head_dim=WIDTH, dtype=torch.float32, values_only=True
    )
    return RebuiltKeys(format, rank, Decoder(model).rotary(TOKENS), device=torch.device("cpu"))


@pytest.mark.parametrize("heads", [1, KV_HEADS])
def test_at_full_rank_keys_are_what_they_were(model: Any, keys: Any, heads: int) -> None:
    """Those of the prompt, and of blocks that came while decoding; each row has the blocks that it chose, in order."""
    rebuilt = rebuilding(model, KV_HEADS * WIDTH, heads)
    rebuilt.decompose(0, keys[:, :, :40])
    rebuilt.append(0, keys[:, :, 40:44])
    rebuilt.append(0, keys[:, :, 44:])
    assert torch.allclose(rebuilt.rebuilt(0, None), keys, atol=1e-4)
    random = np.random.default_rng(2)
    ids = np.array([random.permutation(TOKENS // GROUP)[:3] for _ in range(SEQUENCES * heads)], np.int32)
    chosen = rebuilt.rebuilt(0, ids)
    assert chosen.shape == (SEQUENCES, KV_HEADS, 3 * GROUP, WIDTH)
    for sequence in range(SEQUENCES):
        for head in range(KV_HEADS):
            row = sequence * heads + head * heads // KV_HEADS
            tokens = (ids[row][:, None] * GROUP + np.arange(GROUP)).ravel()
            assert torch.allclose(chosen[sequence, head], keys[sequence, head, tokens], atol=1e-4)


def test_no_low_rank_is_closer(model: Any, keys: Any) -> None:
    """Without their rotary embedding the error is that of the singular values left out (Eckart and Young)."""
    from kvferry.model.decoder import Decoder, rotated, unrotated

    rotary = Decoder(model).rotary(TOKENS)
    plain = unrotated(keys, rotary)
    assert torch.allclose(rotated(plain, rotary), keys, atol=1e-5)
    for rank in (4, 12):
        rebuilt = rebuilding(model, rank, 1)
        rebuilt.decompose(0, keys)
        off = (rebuilt.rebuilt(0, None) - keys).square().sum((1, 2, 3))
        singular = torch.linalg.svdvals(plain.transpose(1, 2).flatten(2))
        assert off.tolist() == pytest.approx(singular[:, rank:].square().sum(1).tolist(), rel=1e-3)
        assert rebuilt.n_bytes == SEQUENCES * (TOKENS + KV_HEADS * WIDTH) * rank * 4
