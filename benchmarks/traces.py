"""How fast traces are asked, read and made, each beside its ceiling."""

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.row import Row, best_s, lower
from kvferry.traces.format import StoredTrace, read_trace, write_trace
from kvferry.traces.generate import generate
from kvferry.traces.logs import Log, mahimahi, stamped
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import bundled_model


def row(what: str, call: Callable[[], object], ceiling: str, least: Callable[[], object]) -> Row:
    """What a call takes beside the least that it has to do."""
    took_us, least_us = (1e6 * best_s(each, times=_times(each)) for each in (call, least))
    return lower(f"{what} ({ceiling})", took_us, "us", least_us)


def _times(call: Callable[[], object]) -> int:
    """This many that a round takes some hundredths of a second."""
    return max(1, int(0.04 / best_s(call, rounds=2)))


def rows() -> Iterator[Row]:
    rng = np.random.default_rng(1)
    trace = RateTrace.from_samples(rng.uniform(0, 1e8, 6000), 0.1)
    edges = trace.edges_s.tolist()
    for what, call in (
        ("finish_s within a piece", lambda: trace.finish_s(3.31, 1e5)),
        ("finish_s over 100 pieces", lambda: trace.finish_s(3.31, 5e8)),
        ("finish_s in the hundredth loop", lambda: trace.finish_s(60_003.3, 5e8)),
        ("amount over 60 pieces", lambda: trace.amount(3.3, 9.9)),
        ("amount over a hundred loops", lambda: trace.amount(3.3, 60_009.9)),
        ("rate_at", lambda: trace.rate_at(77.7)),
    ):
        yield row(what, call, "two bisections", lambda: (bisect_right(edges, 3.3), bisect_right(edges, 3.3)))
    model = bundled_model("wifi-850")
    numbers = 6000 * (1 + len(model.memory))  # type: ignore[union-attr]
    yield row(
        "generate wifi-850, 6,000 samples",
        lambda: generate(model),
        "its random numbers",
        lambda: rng.standard_normal(numbers),
    )
    text = [f"{n / 10:.1f} {rate:.3f}" for n, rate in enumerate(rng.uniform(0, 900, 20_000))]
    log = Log(Path("log"), text)
    yield row(
        "import 20,000 stamped rows",
        lambda: stamped(log),
        "split, float()",
        lambda: [[float(cell) for cell in line.split()] for line in text],
    )
    stamps = [str(n) for n in np.sort(rng.integers(0, 140_000, 100_000))]
    packets = Log(Path("log"), stamps)
    yield row(
        "import 100,000 mahimahi packets", lambda: mahimahi(packets), "int()", lambda: [int(stamp) for stamp in stamps]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, StoredTrace("bandwidth", trace))
        yield row(
            "read a trace of 6,000 pieces",
            lambda: read_trace(path),
            "read and split",
            lambda: [line.split(",") for line in path.read_text().splitlines()],
        )
