"""How good advice is: what it chooses in random cases beside the best of all compositions, each of which is run.

    python studies/advice.py --cases 30 --output docs/validation/data/advice.csv

A case draws a device, a model, a use of few turns, its context, and, each by chance, a link, storage, a limit, and
whether what gives up more counts like the rest. In half of the cases memory is cut to a part of what the KV of the
longest turn takes beside the weights, so that it cannot all lie there. Then every composition that the search could
name is run, and that gives up no more than the choice. Regret: the figure that the choice is judged by, over the least
that any of these has which keeps the limits, minus 1. Cases that no composition answers are left out.

Each case is written as soon as it is done: the same command goes on where it was stopped.
"""

import argparse
import csv
from concurrent.futures import ProcessPoolExecutor, as_completed
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from kvferry.advice.composition import Composition, Loss
from kvferry.advice.question import Question, question_of
from kvferry.advice.search import Search
from kvferry.advice.trial import Trial, tried
from kvferry.specs.errors import InputError

DEVICES = ("rtx-4060", "rtx-3050-laptop", "rtx-4070-laptop", "rtx-4090", "jetson-agx-orin-64gb", "jetson-orin-nano-8gb",
           "snapdragon-8-gen-3", "apple-m3", "core-ultra-7-258v", "raspberry-pi-5-16gb", "iphone-16-pro",
           "oneplus-12")  # fmt: skip
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "qwen3-4b", "qwen3-8b", "llama-3.1-8b")
USES = ("chat", "documents", "agent", "long-answers")
LINKS = (None, None, "wifi-campus", "wifi-office-slow", "50 Mbit/s", "1 Gbit/s")
STORAGE = (None, None, "nvme", "ufs-4.0", "emmc")
FEW = ("workload.turns=6", "workload.turns_each=2", "workload.decoded=3")
# Compositions of a case; of larger spaces a part is pinned, as a user may, until no more are left.
MOST = 480
_PINNED = ("policies.evict=lru", "policies.load=ferry", "policies.keep=memory")
_UNANSWERED = "no composition"
HEADINGS = ("seed", "device", "model", "use", "context", "further", "short", "chosen", "best of all", "regret",
            "compositions", "search_s")  # fmt: skip


def question_drawn(seed: int) -> tuple[dict[str, Any], Question]:
    """Returns the arguments of a case, and the question. Raises InputError where nothing can be asked."""
    rng = np.random.default_rng([27, 2, seed])
    pick = lambda values: values[int(rng.integers(len(values)))]  # noqa: E731
    drawn = {
        "device": pick(DEVICES),
        "model": pick(MODELS),
        "use": pick(USES),
        "context": int(2 ** rng.integers(9, 13)),
        "link": pick(LINKS),
        "storage": pick(STORAGE),
        "ttft": f"{rng.choice([1, 2, 5, 10])} s" if rng.random() < 0.2 else None,
        "tokens_per_s": float(rng.choice([2, 5, 10])) if rng.random() < 0.15 else None,
        "any_quality": True if rng.random() < 0.25 else None,
    }
    is_cut, share = rng.random() < 0.5, rng.uniform(0.1, 0.9)
    case = {key: value for key, value in drawn.items() if value is not None}
    asked = question_of(**case, settings=[*FEW, f"seed={seed}"])
    if is_cut and (budget := _budget(asked, share)) is not None:
        case["memory"] = budget
    for n in range(len(_PINNED) + 1):
        pinned = [one for one in _PINNED[:n] if "link" in case or "load" not in one]
        question = question_of(**case, settings=[*FEW, f"seed={seed}", *pinned])
        if len(_everything(question)) <= MOST:
            break
    return case | {"settings": pinned}, question


def _budget(question: Question, share: float) -> str | None:
    """Memory that holds a share of the KV of the longest turn beside the rest; None: the device holds no more."""
    freely = tried(question, Composition())
    if not freely.is_done or freely.scenario is None:
        return None
    longest = max(question.turns.numbered, key=lambda turn: turn.prompt + turn.output)
    turn_bytes = (longest.prompt + longest.output) * freely.scenario.model.kv_bytes_per_token
    rest_bytes = freely.figures["memory_peak_bytes"] - freely.figures["kv_memory_peak_bytes"]
    return f"{(rest_bytes + share * turn_bytes) / 0.98 / 1e6:.0f} MB"


def _everything(question: Question, loss: Loss = "none") -> list[Composition]:
    """All compositions that give up no more than this."""
    return [one for one in question.space.everything() if question.any_quality or one.gives_up_no_more_than(loss)]


def row_of(seed: int) -> dict[str, Any]:
    """Returns a row of the table; of a case with no answer, its seed alone."""
    nothing = {"seed": seed, "chosen": _UNANSWERED}
    try:
        case, question = question_drawn(seed)
    except InputError:
        return nothing
    search, began_s = Search(question, lambda: None), process_time()
    search.first()
    search.refine()
    search_s = process_time() - began_s
    choice = next(iter(search.whole.ranked()), None)
    trials = [search.whole.of(one) for one in _everything(question, choice.composition.loss if choice else "none")]
    kept = [one for one in trials if not search.whole.rank(one)[0]]
    if choice is None and not kept:
        return nothing
    metric = question.use.spec.best
    best = min(kept, key=lambda one: one.figures[metric])
    settings = case.pop("settings")
    head = {key: case.pop(key) for key in ("device", "model", "use", "context")}
    further = "; ".join([*(f"{key} {value}" for key, value in case.items()), *settings])
    regret = inf if choice is None else choice.figures[metric] / best.figures[metric] - 1
    return {
        "seed": seed,
        **head,
        "further": further,
        "short": "yes" if is_short(trials) else "no",
        "chosen": "nothing" if choice is None else choice.composition.name,
        "best of all": best.composition.name,
        "regret": f"{regret:.4f}",
        "compositions": len(trials),
        "search_s": f"{search_s:.1f}",
    }


def is_short(trials: list[Trial]) -> bool:
    """Whether nothing ran that has all KV in memory, attended to in full at 16 bits."""
    return not any(one.is_done and one.composition.away is None and one.composition.loss == "none" for one in trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    found = _written(asked.output)
    with ProcessPoolExecutor(asked.jobs) as pool:
        while len(_answered(found)) < asked.cases:
            seeds = [seed for seed in range(4 * asked.cases) if seed not in found]
            missing = asked.cases - len(_answered(found))
            for one in as_completed([pool.submit(row_of, seed) for seed in seeds[:missing]]):
                row = one.result()
                found[row["seed"]] = row
                _write(found, asked.output)
                print({key: value for key, value in row.items() if value}, flush=True)
    rows = _answered(found)[: asked.cases]
    regrets = np.array([float(one["regret"]) for one in rows])
    print(f"median {100 * np.median(regrets):.2f} %, largest {100 * regrets.max():.2f} % of {len(rows)} cases")
    print(f"within 3 %: {(regrets <= 0.03).sum()}; short of memory: {sum(one['short'] == 'yes' for one in rows)}")
    print(f"{sum(int(one['compositions']) for one in rows):,} compositions run")


def _answered(found: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [found[seed] for seed in sorted(found) if found[seed]["chosen"] != _UNANSWERED]


def _written(path: Path) -> dict[int, dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {int(row["seed"]): row for row in csv.DictReader(file)}


def _write(found: dict[int, dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        write = csv.DictWriter(file, HEADINGS, restval="", lineterminator="\n")
        write.writeheader()
        write.writerows(found[seed] for seed in sorted(found))


if __name__ == "__main__":
    main()
