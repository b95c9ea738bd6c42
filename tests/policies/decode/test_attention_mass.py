"""What is known of the attention mass on selected tokens: by hand between measured shares, and laws of the table."""

from pathlib import Path

import pytest

from kvferry.policies.decode import attention_mass as module
from kvferry.policies.decode.attention_mass import AttentionMass, Measured, attention_mass, measured


def known(*pairs: tuple[float, float]) -> list[Measured]:
    return [(share, AttentionMass(mass, 0.1 * (1 - mass))) for share, mass in pairs]


@pytest.fixture
def _two_points(monkeypatch: pytest.MonkeyPatch) -> None:
    clustered = {16: known((0.1, 0.9), (1.0, 1.0))}
    by_block = {4: known((0.01, 0.5), (0.04, 0.7), (1.0, 1.0)), 32: known((0.02, 0.4), (1.0, 1.0))}
    table = {("mine", True, ""): by_block, ("clusters", True, "cut"): clustered}
    monkeypatch.setattr(module, "measured", lambda: table)


@pytest.mark.usefixtures("_two_points")
def test_mass_by_hand() -> None:
    def mass(share: float, block: int = 4) -> float:
        found = attention_mass("mine", share, per_head=True, block_tokens=block)
        assert found is not None and found.spread == pytest.approx(0.1 * (1 - found.mean))
        return found.mean

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
    assert attention_mass("another", 1.0) == (1.0, 0.0)
    # An upkeep counts where it was measured apart.
    mine, cut = (
        attention_mass(name, 0.01 * n, per_head=True, upkeep="cut") for name, n in (("mine", 1), ("clusters", 10))
    )
    assert mine is not None and mine.mean == 0.5
    assert cut is not None and cut.mean == 0.9
    assert attention_mass("clusters", 0.1, per_head=True, upkeep="whole") is None


def test_more_tokens_hold_more_and_no_choice_beats_all_keys() -> None:
    for way, blocks in measured().items():
        for pairs in blocks.values():
            shares, masses = [share for share, _ in pairs], [mass.mean for _, mass in pairs]
            assert list(shares) == sorted(set(shares)) and list(masses) == sorted(masses), way
            assert all(share < mass.mean < 1 and mass.spread < 0.2 for share, mass in pairs[:-1]), way
            for share in shares[1:-1]:
                best = attention_mass("keys", share, per_head=True)
                own = attention_mass(way[0], share, per_head=way[1], upkeep=way[2], block_tokens=min(blocks))
                assert best is not None and own is not None and own.mean <= best.mean + 0.02, (way, share)


def test_the_mean_over_texts_and_how_far_they_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heading = "selector,per_head,upkeep,block_tokens,selected_tokens,text,attended_share,attention_mass"
    rows = [
        "keys,true,,1,64,0,0.02,0.5",
        "keys,true,,1,32,0,0.01,0.4",
        "keys,true,,1,32,1,0.03,0.5",
        "keys,true,,1,64,1,0.04,0.8",
    ]
    (tmp_path / "attention_mass.csv").write_text("\n".join([heading, *rows]))
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    try:
        measured.cache_clear()
        assert measured() == {("keys", True, ""): {1: [
            (0.02, pytest.approx((0.45, 0.05))), (0.03, pytest.approx((0.65, 0.15))), (1.0, (1.0, 0.0))
        ]}}  # fmt: skip
    finally:
        measured.cache_clear()
