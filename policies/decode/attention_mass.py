"""The share of attention mass that selected tokens hold, as measured once on a bundled model.

An indicator, not a promise: attention of a large model is less diffuse, and other texts and questions differ.
``studies/attention_mass.py`` measures it again.
"""

import csv
import itertools
import math
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

# selector, per_head and upkeep, as the table has them.
Way = tuple[str, bool, str]


class AttentionMass(NamedTuple):
    """A share of attention mass in the mean over texts, and half the difference between the least and the most."""

    mean: float
    spread: float


# A share of the tokens, and the mass on them.
Measured = tuple[float, AttentionMass]
_ALL = AttentionMass(1.0, 0.0)


@lru_cache(maxsize=1)
def measured() -> dict[Way, dict[int, list[Measured]]]:
    """Returns by way and tokens of a block what was measured over all texts, ascending, the last one all tokens."""
    texts: dict[Way, dict[int, dict[int, list[tuple[float, float]]]]] = {}
    table = (files("kvferry.policies.decode") / "attention_mass.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(table.splitlines()):
        way = row["selector"], row["per_head"] == "true", row["upkeep"]
        by_selected = texts.setdefault(way, {}).setdefault(int(row["block_tokens"]), {})
        of_text = float(row["attended_share"]), float(row["attention_mass"])
        by_selected.setdefault(int(row["selected_tokens"]), []).append(of_text)
    return {
        way: {block: [*sorted(map(_over_texts, of_texts.values())), (1.0, _ALL)] for block, of_texts in blocks.items()}
        for way, blocks in texts.items()
    }


def _over_texts(pairs: list[tuple[float, float]]) -> Measured:
    shares, masses = zip(*pairs, strict=True)
    mean = sum(masses) / len(masses)
    return sum(shares) / len(shares), AttentionMass(mean, (max(masses) - min(masses)) / 2)


def attention_mass(
    selector: str, attended_share: float, *, per_head: bool = False, upkeep: str = "", block_tokens: int = 1
) -> AttentionMass | None:
    """Returns the share of attention mass on `attended_share` of the tokens, which this selector chose: 1 where that is
    all of them. Interpolated over the logarithm of the share, from the measured size of blocks that is nearest. None
    for a selector that was not measured, and for a smaller share than was.

    `selector` and `upkeep` by their names in a scenario; an upkeep counts where it was measured apart."""
    if attended_share >= 1:
        return _ALL
    table = measured()
    blocks = table.get((selector, per_head, upkeep)) or table.get((selector, per_head, ""))
    if not blocks:
        return None
    nearest = min(blocks, key=lambda one: (abs(math.log(one / block_tokens)), one))
    pairs = blocks[nearest]
    for (share, mass), (next_share, next_mass) in itertools.pairwise(pairs):
        if share <= attended_share < next_share:
            part = math.log(attended_share / share) / math.log(next_share / share)
            return AttentionMass(*(a + part * (b - a) for a, b in zip(mass, next_mass, strict=True)))
    return None
