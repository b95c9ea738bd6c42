"""Sizes that follow from a model's dimensions."""

import pytest
from tiny import tiny_model


@pytest.mark.parametrize(("value_bytes", "entry_bytes"), [(2.0, 32), (0.5, 8), (0.13, 2)])
def test_kv_sizes_by_hand(value_bytes: float, entry_bytes: int) -> None:
    # Keys of two heads of four numbers, and as many values; storage holds whole bytes per token and layer.
    model = tiny_model(layers=3, kv_heads=2, head_dim=4, kv_value_bytes=value_bytes)
    assert model.key_width == 8
    assert model.kv_entry_bytes == entry_bytes
    assert model.kv_full_bytes(100) == 3 * 100 * entry_bytes
