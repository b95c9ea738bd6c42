"""Every bundled scenario with values that it was not written for: of others, and odd ones."""

import re
from functools import cache
from pathlib import Path
from random import Random

from damage import ODD_TEXTS, damaged_lines
from limited import called
from seeds import blocks, check_each
from test_scenarios import judged

from kvferry.scenarios.library import BUNDLED, names
from kvferry.scenarios.loader import load_scenario

HERE = "tests/fuzz/test_bundled_scenarios.py"
# Whatever a scenario asks for, it is simulated, and small.
FEW = {
    "assist": ("workload.devices=2", "workload.requests=3"),
    "decode": ("workload.output=8", "workload.decoded=null"),
    "context-reuse": ("workload.requests=2",),
    "session": ("workload.turns=12",),
}


@cache
def texts() -> dict[str, str]:
    """The files of all bundled scenarios, by name."""
    return {name: (BUNDLED / f"{name}.yaml").read_text() for name in names("scenario")}


@cache
def by_kind() -> dict[str, list[str]]:
    """The names of all bundled scenarios, by the kind of their workload."""
    found: dict[str, list[str]] = {}
    for name in sorted(texts()):
        found.setdefault(load_scenario(name).workload.kind, []).append(name)
    return found


@cache
def values() -> dict[str, list[str]]:
    """What stands behind each key in all of them."""
    found: dict[str, set[str]] = {}
    for text in texts().values():
        for key, value in re.findall(r"(\w+): ([^,{}\[\]#\n]+)", text):
            found.setdefault(key, set()).add(value.strip())
    return {key: sorted(all_values) for key, all_values in found.items()}


def mutated(chance: Random, text: str) -> str:
    """The text with some of its values those of other scenarios, numbers that are larger or smaller, or odd."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(re.finditer(r"(\w+): ([^,{}\[\]#\n]+)", text))
        place = chance.choice(places)
        key, value = place.groups()
        how = chance.random()
        if how < 0.4:
            new = chance.choice(values()[key])
        elif how < 0.7:
            new = re.sub(r"\d+(\.\d+)?", lambda one: f"{float(one[0]) * chance.choice((0, 0.1, 0.5, 2, 10)):g}", value)
        elif how < 0.9:
            new = chance.choice(values()[chance.choice(sorted(values()))])
        else:
            new = chance.choice(ODD_TEXTS)
        text = text[: place.start(2)] + new + text[place.end(2) :]
    return damaged_lines(chance, text) if chance.random() < 0.1 else text


@blocks(quick=4, long=10_000, size=4)
def test_mutated_bundled_scenarios(seeds: range, tmp_path: Path) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        kind = chance.choice(sorted(FEW))
        name = chance.choice(by_kind()[kind])
        text = texts()[name]
        (tmp_path / "s.yaml").write_bytes(mutated(chance, text).encode("utf-8", "surrogatepass"))
        words = chance.choice((("run",), ("run",), ("run",), ("schedule",), ("compare",), ("tune",)))
        small = [word for setting in ("backend=sim", *FEW[kind]) for word in ("--set", setting)]
        found = called(*words, "s.yaml", *small, "--json", folder=tmp_path)
        why = judged(found) if words == ("run",) else f"{words}: {found.fault}: {found}" if found.fault else None
        return f"{name}: {why}" if why else None

    check_each(seeds, f"{HERE}::test_mutated_bundled_scenarios", case)
