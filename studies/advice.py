"""How good advice is: what it chooses in random cases beside the best of all compositions, each of which is run.

    python studies/advice.py --cases 30 --output docs/validation/data/advice.csv

A case draws a device, a model that its memory holds, a use of few turns, and, each by chance, a link, storage, a budget
of memory, a limit on TTFT, and parts that are pinned; questions with more than MOST compositions that give up nothing
are left out, as all are run. Regret: the figure that the choice is judged by, over the least that any composition has
which gives up no more and keeps the limits, minus 1.
"""

import argparse
import csv
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.advice.composition import LOSSES
from kvferry.advice.question import question_of
from kvferry.advice.search import Search
from kvferry.specs.errors import InputError

DEVICES = ("rtx-4060", "rtx-3050-laptop", "jetson-agx-orin-64gb", "snapdragon-8-gen-3", "apple-m3", "core-ultra-7-258v",
           "rtx-4090", "raspberry-pi-5-16gb", "iphone-16-pro", "oneplus-12")  # fmt: skip
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "qwen3-4b", "qwen3-8b", "llama-3.1-8b")
USES = ("chat", "documents", "agent", "long-answers")
LINKS = (None, None, "wifi-campus", "wifi-office-slow", "50 Mbit/s", "1 Gbit/s")
# Compositions of a case.
MOST = 100
STORAGE = (None, None, "nvme", "ufs-4.0", "emmc")


HEADINGS = ("device", "model", "use", "context", "further", "chosen", "best of all", "regret", "compositions")


@dataclass(frozen=True)
class Regret:
    """A case, what was chosen, and the best of all."""

    case: dict[str, Any]
    chosen: str
    best: str
    regret: float
    compositions: int


def drawn(seed: int) -> dict[str, Any]:
    """Returns the arguments of a question."""
    rng = np.random.default_rng([27, seed])
    pick = lambda values: values[int(rng.integers(len(values)))]  # noqa: E731
    link, storage = pick(LINKS), pick(STORAGE)
    found = {
        "device": pick(DEVICES),
        "model": pick(MODELS),
        "use": pick(USES),
        "context": int(2 ** rng.integers(9, 12)),
        "link": link,
        "storage": storage,
        "ttft": f"{rng.choice([0.5, 1, 2, 5])} s" if rng.random() < 0.3 else None,
        "memory": f"{rng.choice([3, 4, 6])} GB" if rng.random() < 0.3 else None,
    }
    pinned = ["policies.evict=lru"] if rng.random() < 0.7 else []
    pinned += ["policies.load=ferry"] if found["link"] is not None and rng.random() < 0.5 else []
    return {key: value for key, value in found.items() if value is not None} | {"settings": pinned}


def regret_of(seed: int) -> Regret | None:
    """Returns the regret of a case; None: no composition keeps its limits, or its model fits nowhere."""
    case = drawn(seed)
    few = ["workload.turns=4", "workload.decoded=3", f"seed={seed}"]
    try:
        question = question_of(**{**case, "settings": [*few, *case["settings"]]})
    except InputError:
        return None
    if sum(one.loss == "none" for one in question.space.everything()) > MOST:
        return None
    search = Search(question, lambda: None)
    search.first()
    search.refine()
    if not search.whole.ranked():
        return None
    chosen = search.whole.ranked()[0]
    worst = len(LOSSES) if question.any_quality else LOSSES.index(chosen.composition.loss) + 1
    everything = [one for one in question.space.everything() if one.loss in LOSSES[:worst]]
    metric, least, best, n = question.use.spec.best, inf, "", 0
    for one in everything:
        if one.evict != "lru" and one.keep in ("drop", "cloud"):
            continue  # nothing is evicted
        n += 1
        trial = search.whole.of(one)
        if not search.whole.rank(trial)[0] and trial.figures[metric] < least:
            least, best = trial.figures[metric], one.name
    return Regret(case, chosen.composition.name, best, chosen.figures[metric] / least - 1, n)


def rows(cases: int, jobs: int) -> Iterator[Regret]:
    """Yields regrets of so many cases that have an answer."""
    given = 0
    with ProcessPoolExecutor(jobs) as pool:
        under_way = [pool.submit(regret_of, seed) for seed in range(4 * cases)]
        for one in as_completed(under_way):
            if (found := one.result()) is not None:
                yield found
                given += 1
            if given == cases:
                pool.shutdown(wait=False, cancel_futures=True)
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    found = []
    for one in rows(asked.cases, asked.jobs):
        found.append(one)
        what = ", ".join(f"{key} {value}" for key, value in one.case.items())
        print(f"{100 * one.regret:6.2f} %  {one.chosen} | {one.best} | {one.compositions} | {what}", flush=True)
    regrets = np.array([one.regret for one in found])
    print(f"median {100 * np.median(regrets):.2f} %, largest {100 * regrets.max():.2f} % of {len(found)} cases")
    print(f"within 3 %: {(regrets <= 0.03).sum()}; {sum(one.compositions for one in found):,} compositions run")
    if asked.output is not None:
        _write(found, asked.output)


def _write(found: list[Regret], path: Path) -> None:
    with path.open("w", newline="") as file:
        write = csv.writer(file, lineterminator="\n").writerow
        write(HEADINGS)
        for one in found:
            case = dict(one.case)
            head = [case.pop(key) for key in ("device", "model", "use", "context")]
            pinned = case.pop("settings")
            further = "; ".join([*(f"{key} {value}" for key, value in case.items()), *pinned])
            write([*head, further, one.chosen, one.best, f"{one.regret:.4f}", one.compositions])


if __name__ == "__main__":
    main()
