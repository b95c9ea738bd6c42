"""Measures speeds, each beside its ceiling, and warns where one is worse than the last that was kept.

python -m benchmarks [NAME...] [--save] [--remark TEXT] [--tolerance 0.25]

Run it from the repository's root, on a machine that does nothing else. Without names every benchmark runs, which takes
some ten minutes. A benchmark is a module of this folder with a function `rows` that yields what benchmarks/row.py
describes.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from benchmarks.kept import load, machine, save, warnings
from benchmarks.row import Row

# The quickest first.
NAMES = (
    "traces",
    "costs",
    "start",
    "storage_models",
    "simulate",
    "assist",
    "clusters",
    "transfers",
    "codec",
    "session",
    "sweeps",
    "study",
    "planners",
    "live",
    "link",
)
# Figures of a quiet machine repeat within a tenth; on two speeds, as shared machines have, within a quarter.
TOLERANCE = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/figures")
    parser.add_argument("--remark", default="", help="kept with them, as in 'on a quiet machine'")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="worse by less is no warning (0.25)")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    for name in asked.names or NAMES:
        try:
            measure: Callable[[], Iterator[Row]] = import_module(f"benchmarks.{name}").rows
        except ImportError as error:
            print(f"\n{name}: left out, it needs {error.name}: pip install -e '.[torch]'", file=sys.stderr)
            continue
        _run(name, measure, asked.tolerance, asked.remark if asked.save else None)


def _run(name: str, measure: Callable[[], Iterator[Row]], tolerance: float, save_with: str | None) -> None:
    """Print the figures as they come, then the warnings; keep the figures with a remark."""
    kept = load(name)
    last = {} if kept is None else {row["name"]: row["value"] for row in kept["rows"]}
    print(f"\n{name:64}{'':>10} {'':12}{'ceiling':>10}{'of it':>8}{'last':>10}")
    rows = []
    for row in measure():
        rows.append(row)
        ceiling = "" if row.ceiling is None else f"{row.ceiling:.4g}"
        share = f"{row.value / row.ceiling:.2f}" if row.ceiling else ""
        then = f"{last[row.name]:.4g}" if row.name in last else ""
        print(f"  {row.name:62}{row.value:10.4g} {row.unit:12}{ceiling:>10}{share:>8}{then:>10}", flush=True)
    if kept is not None and kept["machine"] != machine():
        print(f"  the last figures are of another machine: {kept['machine']}", file=sys.stderr)
    for line in warnings(rows, kept, tolerance):
        print(f"  warning: {line}", file=sys.stderr)
    if save_with is not None:
        print(f"  written to {save(name, rows, save_with)}")


if __name__ == "__main__":
    main()
