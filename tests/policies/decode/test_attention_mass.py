"""What is known of the attention mass on selected tokens: by hand between measured shares, and laws of the table."""

import pytest

from kvferry.policies.decode import attention_mass as module
from kvferry.policies.decode.attention_mass import attention_mass, measured


@pytest.fixture
def _two_points(monkeypatch: pytest.MonkeyPatch) -> None:
    clustered = {16: [(0.1, 0.9), (1.0, 1.0)]}
    by_block = {4: [(0.01, 0.5), (0.04, 0.7), (1.0, 1.0)], 32: [(0.02, 0.4), (1.0, 1.0)]}
    table = {("mine", True, ""): by_block, ("clusters", True, "cut"): clustered}
    monkeypatch.setattr(module, "measured", lambda: table)


@pytest.mark.usefixtures("_two_points")
def test_mass_by_hand() -> None:
    def mass(share: float, block: int = 4) -> float | None:
        return attention_mass("mine", share, per_head=True, block_tokens=block)

    # Half way from 1 to 4 %, as one doubles.
    assert mass(0.02) == pytest.approx(0.6)
    assert mass(0.01) == 0.5
    # From the largest measured share on, towards all of it.
    assert mass(0.2) == pytest.approx(0.85)
    assert mass(1.0) == 1.0
    # Blocks of 8 are nearer to 4 than to 32, those of 16 are not.
    assert mass(0.02, 8) == pytest.approx(0.6)
    assert mass(0.02, 16) == 0.4


@pytest.mark.usefixtures("_two_points")
def test_what_was_not_measured_is_not_known() -> None:
    assert attention_mass("mine", 0.009, per_head=True) is None
    assert attention_mass("mine", 0.02, per_head=False) is None
    assert attention_mass("another", 0.02, per_head=True) is None
    assert attention_mass("another", 1.0) == 1.0
    # An upkeep counts where it was measured apart.
    assert attention_mass("mine", 0.01, per_head=True, upkeep="cut") == 0.5
    assert attention_mass("clusters", 0.1, per_head=True, upkeep="cut") == 0.9
    assert attention_mass("clusters", 0.1, per_head=True, upkeep="whole") is None


def test_more_tokens_hold_more_and_no_choice_beats_all_keys() -> None:
    for way, blocks in measured().items():
        for pairs in blocks.values():
            shares, masses = zip(*pairs, strict=True)
            assert list(shares) == sorted(set(shares)) and list(masses) == sorted(masses), way
            assert all(share < mass < 1 for share, mass in pairs[:-1]), way
            for share in shares[1:-1]:
                best = attention_mass("keys", share, per_head=True)
                own = attention_mass(way[0], share, per_head=way[1], upkeep=way[2], block_tokens=min(blocks))
                assert best is not None and own is not None and own <= best + 0.02, (way, share)
