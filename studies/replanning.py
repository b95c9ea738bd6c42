"""Whether a forecast of the link with its uncertainty makes better plans than a rate and a constant caution.

    python studies/replanning.py --every 4 --offsets 2
    python studies/replanning.py --every 1 --offsets 20 --few --output out.csv     # all links

`Ferry` plans with 0.85 of the rate that it sees, and again when that has changed by a tenth. Beside it: a receding
horizon, and the future itself, which bounds what any forecast can bring. Constants of Ferry were chosen on every second
link by name (--every 2), and not on the others (--every 2 --first 1).
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from regret import CONTENTS, MEAN_BYTES_PER_S, RTT_S, SEQUENCES, Case, context_of, least_s, load_s, price_s

from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.horizon import Horizon
from kvferry.policies.loading.loader import Loader, LoadFacts
from kvferry.traces.catalogue import catalogue, recorded_trace
from kvferry.traces.rate import RateTrace


class Foreseen(Ferry):
    """Plans with what the link will really carry."""

    def __init__(self, link: RateTrace) -> None:
        super().__init__()
        self._link_of_all = link

    def _arriving_bytes(self, work_s: np.ndarray, facts: LoadFacts) -> np.ndarray:
        until_s = facts.now_s + work_s / self._speed
        grid_s = np.linspace(facts.now_s, float(until_s.max(initial=facts.now_s)) + 1e-9, 200)
        brought = [self._link_of_all.amount(facts.now_s, one) if one > facts.now_s else 0.0 for one in grid_s.tolist()]
        return np.interp(until_s, grid_s, brought)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=4, help="take every n-th recorded link by name")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--offsets", type=int, default=2)
    parser.add_argument("--contents", nargs="+", choices=CONTENTS, default=["text", "vlm", "vlm-opposed"])
    parser.add_argument("--few", action="store_true", help="ferry and the horizon with one deviation alone")
    parser.add_argument("--output", type=Path, metavar="FILE", help="append every load's regret to this CSV file")
    asked = parser.parse_args()
    names = sorted(catalogue())[asked.first :: asked.every]
    print(f"{len(names)} links, {asked.offsets} offsets each; regret in %")
    print(f"{'':36s} {'median':>8s} {'p95':>8s} {'worst':>8s}")
    for content in asked.contents:
        found: dict[str, list[float]] = {}
        for name in names:
            rows = []
            for n, label, regret in on_link(content, name, asked.offsets, asked.few):
                found.setdefault(label, []).append(100 * regret)
                rows.append((content, name, n, label, f"{100 * regret:.4f}"))
            if asked.output is not None:
                with asked.output.open("a", newline="") as file:
                    csv.writer(file).writerows(rows)
        for label, values in found.items():
            median, p95 = np.percentile(values, [50, 95])
            print(f"{content + ': ' + label:36s} {median:8.2f} {p95:8.2f} {max(values):8.2f}", flush=True)


def on_link(content: str, name: str, offsets: int, few: bool) -> Iterator[tuple[int, str, float]]:
    """(offset, loader, regret) on one recorded link."""
    trace = recorded_trace(name)
    trace = trace.scaled(MEAN_BYTES_PER_S / trace.mean())
    for n in range(offsets):
        link = trace.shifted((n + 0.5) / offsets * trace.duration_s)
        for label, regret in regrets(content, link, n % SEQUENCES, few):
            yield n, label, regret


def regrets(content: str, link: RateTrace, sequence: int, few: bool) -> list[tuple[str, float]]:
    case = Case(content, "all_heads", 16 * 1024, False, "roofline", "roofline")
    context = context_of(content, "all_heads", case.tokens, sequence, "huffman")
    problem = context.problem(partial(price_s, case.truth))
    bound_s = least_s(context, problem, link, RTT_S)
    loaders: dict[str, Callable[[], Loader]] = {"ferry": Ferry, "horizon, mean less 1 deviation": partial(Horizon, 1.0)}
    if not few:
        loaders["ferry, chain order alone"] = partial(Ferry, needed_first=False)
        loaders["horizon, mean less 0.5 deviations"] = partial(Horizon, 0.5)
        loaders["the future itself"] = partial(Foreseen, link)
    return [(label, load_s(case, make(), context, link) / bound_s - 1) for label, make in loaders.items()]


if __name__ == "__main__":
    main()
