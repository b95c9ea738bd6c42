"""How fast storage is simulated, by its curve and command by command: batches per second of processor time.

The ceiling is SimPy's: time-outs and nothing else.
"""

from collections.abc import Iterator
from time import process_time

import numpy as np
import simpy

from benchmarks.row import Row, best_s, higher
from kvferry.machine.ops import Extents
from kvferry.scenarios.loader import load_storage
from kvferry.sim.storage_models import storage_of

TIME_OUTS = 50_000
# Commands of a batch, their bytes, and how many batches.
BATCHES = ((1, 16384, 5000), (100, 16384, 500), (3200, 4096, 40), (8, 1 << 20, 100))


def time_outs() -> None:
    env = simpy.Environment()
    for _ in range(TIME_OUTS):
        env.timeout(1.0)
    env.run()


def rows() -> Iterator[Row]:
    ceiling = TIME_OUTS / best_s(time_outs, rounds=3, clock=process_time)
    yield higher("bare SimPy: time-outs", ceiling, "events/s")
    rng = np.random.default_rng(0)
    storage = load_storage("nvme")
    for commands, block, batches in BATCHES:
        offsets = rng.permutation(8 * commands)[:commands] * 2 * block
        extents = Extents(offsets, np.full(commands, block))
        for model in ("curve", "queue"):
            env = simpy.Environment()
            device = storage_of(env, storage.model_copy(update={"model": model}), lambda span: None)
            took_s = best_s(
                lambda env=env, device=device: env.run(until=device.read(extents)),  # noqa: B023
                rounds=1,
                times=batches,
                clock=process_time,
            )
            yield higher(f"{model}, {commands} x {block >> 10} KiB", 1 / took_s, "batches/s", ceiling)
