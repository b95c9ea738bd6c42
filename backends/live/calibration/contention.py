"""How much paths slow each other on this device: decoder, compute thread, server and client share its cores."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

from kvferry.backends.live.calibration.codec import CODECS, piece, piece_seconds
from kvferry.backends.live.calibration.link import LAYERS, Anyone, client_of, probe_store, unit
from kvferry.backends.live.calibration.measurement import Measurement
from kvferry.backends.live.calibration.rig import Rig
from kvferry.backends.live.calibration.task import Task
from kvferry.backends.live.codec_pool import CodecPool
from kvferry.backends.live.server_process import ServerProcess
from kvferry.machine.ops import Advance, KvRef, Op, Project
from kvferry.specs.link import LinkSpec
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks

# The rate at which the link's share of the cores is taken; a profile says it, as slowdowns go in proportion.
LINK_BYTES_PER_S = 40e6
_BEFORE = CHUNK_TOKENS

# Does a little of a path's work, and says how many seconds it took.
Sample = Callable[[], float]


def tasks(rig: Rig, folder: Path) -> Iterator[Task]:
    yield Task("contention", lambda: contention(rig, folder))


def contention(rig: Rig, folder: Path) -> list[Measurement]:
    """Per pair, seconds of the one beside the other over seconds alone, the two in turns."""
    rounds = 1 if rig.settings.quick else 5
    with ExitStack() as paths:
        compute = paths.enter_context(computing(rig))
        decompress = paths.enter_context(decompressing(rig))
        link = paths.enter_context(receiving(folder))
        pairs: list[tuple[str, Sample, str, Sequence[Sample]]] = [
            ("compute", compute, "decompress", [decompress]),
            ("compute", compute, "link", [link]),
            ("compute", compute, "decompress and link", [decompress, link]),
            ("decompress", decompress, "compute", [compute]),
            ("decompress", decompress, "link", [link]),
            ("link", link, "compute", [compute]),
            ("link", link, "decompress", [decompress]),
        ]
        for _, path, _, _ in pairs:
            path()
        ratios: dict[str, list[float]] = {f"{name} beside {other}": [] for name, _, other, _ in pairs}
        for _ in range(rounds):
            for name, path, other, others in pairs:
                alone_s = path()
                with at_work(others):
                    ratios[f"{name} beside {other}"].append(path() / alone_s)
    at = {"link_bytes_per_s": LINK_BYTES_PER_S}
    return [Measurement(what=what, unit="times", values=tuple(values), at=at) for what, values in ratios.items()]


@contextmanager
def at_work(others: Sequence[Sample]) -> Iterator[None]:
    """These paths work without a pause while the block runs."""
    enough = threading.Event()
    working = [threading.Event() for _ in others]

    def go_on(sample: Sample, begun: threading.Event) -> None:
        begun.set()
        while not enough.is_set():
            sample()

    with ThreadPoolExecutor(len(others)) as threads:
        running = [threads.submit(go_on, *each) for each in zip(others, working, strict=True)]
        try:
            for begun in working:
                begun.wait()
            yield
        finally:
            enough.set()
    for each in running:
        each.result()


@contextmanager
def computing(rig: Rig) -> Iterator[Sample]:
    """Some layers of a token chunk, after another one."""
    spec, tokens = rig.spec, CHUNK_TOKENS // (4 if rig.settings.quick else 2)
    layers = min(4, max(1, spec.layers - 1))
    ops: list[Op] = []
    for l in range(layers):
        kv = KvRef(0, 1, l, None, 0.0)
        ops += [Project(tokens, kv), Advance(tokens, causal_blocks(tokens, _BEFORE) * spec.kv_heads, _BEFORE, kv)]
    with rig.running(_BEFORE + tokens) as running:

        def sample() -> float:
            request, _ = running.loaded(1)
            return sum(running.seconds(ops, request))

        yield sample


@contextmanager
def decompressing(rig: Rig) -> Iterator[Sample]:
    chunks = piece(rig, CODECS[0], CHUNK_TOKENS // (4 if rig.settings.quick else 1))
    with CodecPool(rig.settings.workers) as pool:
        yield lambda: sum(piece_seconds(pool, chunks, rig.settings.workers))


@contextmanager
def receiving(folder: Path) -> Iterator[Sample]:
    """Fetches over a link of that rate, two ahead."""
    link = LinkSpec(rate_bytes_per_s=LINK_BYTES_PER_S)
    with ServerProcess(probe_store(folder), link) as server, client_of(server) as client:

        def sample() -> float:
            began_s = perf_counter()
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda l: client.fetch(unit(l), None, Anyone()), range(LAYERS)))
            return perf_counter() - began_s

        yield sample
