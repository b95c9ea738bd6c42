"""Whole prompts through a layer, in as little memory as a piece of them takes."""

import pytest
from small_decoding import small_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("together", [1, 16, 4096])
@torch.no_grad()
def test_a_layer_reads_prompts_piece_by_piece_and_says_the_same(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.model import whole_prefill
    from kvferry.model.decoder import Decoder

    model = small_model()
    decoder, read = Decoder(model), list[int]()
    above = Decoder.above
    monkeypatch.setattr(whole_prefill, "_TOGETHER", together)
    monkeypatch.setattr(
        Decoder, "above", lambda self, l, below, seen: read.append(below[..., 0].numel()) or above(self, l, below, seen)
    )
    ids = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(1))
    hidden, rotary = decoder.embed(ids), decoder.rotary(30)
    for layer in range(decoder.layers):
        hidden = whole_prefill.prefill_layer(decoder, layer, hidden, rotary).hidden
    exact = model(ids).logits
    assert (decoder.logits(hidden) - exact).abs().max() < 1e-4 * exact.std()
    assert max(read) <= max(together, 2)
