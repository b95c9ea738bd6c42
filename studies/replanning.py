"""Whether a forecast of the link with its uncertainty makes better plans than a rate and a constant caution.

    python studies/replanning.py --every 4
    python studies/replanning.py --offsets 20 --few --jobs 16 --output out.csv     # all links

`Ferry` plans with 0.85 of the rate that it sees, and again when that has changed by a tenth. Beside it: a receding
horizon, and the future itself, which bounds what any forecast can bring. Constants were chosen on half of the links
(--half chosen) and not on the others (--half held-out).
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from regret import CONTENTS, HALVES, MEAN_BYTES_PER_S, RTT_S, SEQUENCES, Case, context_of, least_s, load_s, price_s
from regret_rows import percentiles, print_table, write_csv

from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.horizon import Horizon
from kvferry.policies.loading.loader import Loader, LoadFacts
from kvferry.policies.loading.problem import Coupling
from kvferry.traces.catalogue import catalogue, recorded_trace
from kvferry.traces.derived import shifted
from kvferry.traces.rate import RateTrace


class Foreseen(Ferry):
    """Plans with what the link will really carry."""

    def __init__(self, link: RateTrace) -> None:
        super().__init__()
        self._link_of_all = link

    def _arriving_bytes(self, work_s: np.ndarray, facts: LoadFacts) -> np.ndarray:
        until_s = facts.now_s + work_s / self._processor.per_s
        grid_s = np.linspace(facts.now_s, float(until_s.max(initial=facts.now_s)) + 1e-9, 200)
        brought = [self._link_of_all.amount(facts.now_s, one) if one > facts.now_s else 0.0 for one in grid_s.tolist()]
        return np.interp(until_s, grid_s, brought)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=HALVES, help="chosen: links that constants were chosen on; held-out: others")
    parser.add_argument("--every", type=int, default=1, help="take every n-th recorded link by name")
    parser.add_argument("--offsets", type=int, default=2)
    parser.add_argument("--contents", nargs="+", choices=CONTENTS, default=["text", "vlm", "vlm-opposed"])
    parser.add_argument("--couplings", nargs="+", choices=("all_heads", "per_head"), default=["all_heads"])
    parser.add_argument("--few", action="store_true", help="ferry and the horizon with one deviation alone")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write every load's regret to this CSV file")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()

    from joblib import Parallel, delayed

    names = sorted(catalogue())[HALVES[asked.half] if asked.half else slice(None)][:: asked.every]
    cells = list(product(asked.contents, asked.couplings))
    on_links = Parallel(n_jobs=asked.jobs)(
        delayed(on_link)(content, coupling, name, asked.offsets, asked.few)
        for (content, coupling), name in product(cells, names)
    )
    rows = [row for on_one in on_links for row in on_one]
    print(f"{len(names)} links, {asked.offsets} offsets each")
    table: dict[str, dict[str, str]] = {}
    for label, (content, coupling) in product(dict.fromkeys(row[4] for row in rows), cells):
        regrets = [row[5] for row in rows if (row[0], row[1], row[4]) == (content, coupling, label)]
        table.setdefault(f"{label}, {coupling}", {})[content] = percentiles(regrets)
    print_table("median, p95, p99, worst, %", table)
    told = [(*row[:5], f"{100 * row[5]:.4f}") for row in rows]
    write_csv(asked.output, ("content", "coupling", "link", "offset", "loader", "regret, %"), told)


def on_link(
    content: str, coupling: Coupling, name: str, offsets: int, few: bool
) -> list[tuple[str, Coupling, str, int, str, float]]:
    """(content, coupling, link, offset, loader, regret) on one recorded link."""
    trace = recorded_trace(name)
    trace = trace.with_rates(trace.rates * (MEAN_BYTES_PER_S / trace.mean()))
    return [
        (content, coupling, name, n, label, regret)
        for n in range(offsets)
        for label, regret in regrets(
            content, coupling, shifted(trace, (n + 0.5) / offsets * trace.duration_s), n % SEQUENCES, few
        )
    ]


def regrets(content: str, coupling: Coupling, link: RateTrace, sequence: int, few: bool) -> list[tuple[str, float]]:
    case = Case(content, coupling, 16 * 1024, False, "roofline", "roofline")
    context = context_of(content, coupling, case.tokens, sequence, "huffman")
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
