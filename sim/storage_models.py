"""Storage models by name."""

from collections.abc import Callable

import simpy

from kvferry.machine.span import Tell
from kvferry.sim.contention import Contention
from kvferry.sim.storage import Storage
from kvferry.sim.storage_curve import CurveStorage
from kvferry.sim.storage_queue import QueueStorage
from kvferry.specs.storage import StorageSpec

STORAGE_MODELS: dict[str, Callable[[simpy.Environment, StorageSpec, Tell], Storage]] = {
    "curve": CurveStorage,
    "queue": QueueStorage,
}


def storage_of(env: simpy.Environment, spec: StorageSpec, tell: Tell, contention: Contention | None = None) -> Storage:
    """Returns the device that a profile describes, by the model that it names. `contention` slows a curve alone."""
    if spec.model == "curve":
        return CurveStorage(env, spec, tell, contention)
    return STORAGE_MODELS[spec.model](env, spec, tell)
