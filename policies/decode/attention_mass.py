"""The share of attention mass that selected tokens hold, as measured once on a bundled model.

An indicator, not a promise: attention of a large model is less diffuse, and other texts and questions differ.
``studies/attention_mass.py`` measures it anew.
"""

import csv
import math
from functools import lru_cache
from importlib.resources import files

# selector, per_head and upkeep, as the table has them.
Way = tuple[str, bool, str]


@lru_cache(maxsize=1)
def measured() -> dict[Way, dict[int, list[tuple[float, float]]]]:
    """By way and tokens of a block: pairs (share of the tokens, share of the mass), ascending, the last one (1, 1)."""
    found: dict[Way, dict[int, list[tuple[float, float]]]] = {}
    table = (files("kvferry.policies.decode") / "attention_mass.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(table.splitlines()):
        way = row["selector"], row["per_head"] == "true", row["upkeep"]
        pairs = found.setdefault(way, {}).setdefault(int(row["block_tokens"]), [(1.0, 1.0)])
        pairs.append((float(row["attended_share"]), float(row["attention_mass"])))
    return {way: {block: sorted(pairs) for block, pairs in blocks.items()} for way, blocks in found.items()}


def attention_mass(
    selector: str, attended_share: float, *, per_head: bool = False, upkeep: str = "", block_tokens: int = 1
) -> float | None:
    """The share of attention mass on `attended_share` of the tokens, which this selector chose: 1 where that is all of
    them. Interpolated over the logarithm of the share, from the measured size of blocks that is nearest. None for a
    selector that was not measured, and for a smaller share than was.

    `selector` and `upkeep` by their names in a scenario; an upkeep counts where it was measured apart."""
    if attended_share >= 1:
        return 1.0
    table = measured()
    blocks = table.get((selector, per_head, upkeep)) or table.get((selector, per_head, ""))
    if not blocks:
        return None
    nearest = min(blocks, key=lambda one: (abs(math.log(one / block_tokens)), one))
    pairs = blocks[nearest]
    for (share, mass), (next_share, next_mass) in zip(pairs, pairs[1:], strict=False):
        if share <= attended_share < next_share:
            part = math.log(attended_share / share) / math.log(next_share / share)
            return mass + part * (next_mass - mass)
    return None
