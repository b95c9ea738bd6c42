"""How long until the first token, how fast afterwards, at what energy and memory?

With this device, this link, this model and this policy:

    import kvferry

    result = kvferry.run("quickstart", {"link.rtt": "20 ms"})
    result.metrics["ttft_s"], result.requests, result.picture()

``load`` and ``override`` make scenarios, ``run`` and ``compare`` carry one out, ``sweep`` a study of many,
``search`` looks for the best of many, ``advise`` for the system for a device, a model and a use, ``schedule`` and
``tune`` compare plans and find parameters, ``calibrate`` measures this machine, ``fidelity`` how far the simulator is
off it, ``encode`` makes stores for a cloud, ``reproduce`` puts papers beside ours, ``report`` makes a page of results,
``plot`` draws pictures again, ``pack`` and ``unpack`` hand a sweep on that ``check`` runs again, and ``use`` brings
policies of your own along. The command ``kvferry`` calls the same functions. Units are in names: ``_s`` seconds,
``_bytes`` bytes, ``_j`` joules.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvferry.advice.advise import advise as advise
    from kvferry.advice.answer import Answer as Answer
    from kvferry.api.artefact import check as check
    from kvferry.api.artefact import pack as pack
    from kvferry.api.artefact import plot as plot
    from kvferry.api.artefact import unpack as unpack
    from kvferry.api.calibration import Calibration as Calibration
    from kvferry.api.calibration import calibrate as calibrate
    from kvferry.api.capacity import capacity as capacity
    from kvferry.api.comparison import Comparison as Comparison
    from kvferry.api.comparison import compare as compare
    from kvferry.api.encode import encode as encode
    from kvferry.api.fidelity import Fidelity as Fidelity
    from kvferry.api.fidelity import fidelity as fidelity
    from kvferry.api.html import Picture as Picture
    from kvferry.api.report import report as report
    from kvferry.api.reproduce import Reproduction as Reproduction
    from kvferry.api.reproduce import reproduce as reproduce
    from kvferry.api.result import Result as Result
    from kvferry.api.result import run as run
    from kvferry.api.scenario import load as load
    from kvferry.api.scenario import override as override
    from kvferry.api.schedule import Schedules as Schedules
    from kvferry.api.schedule import schedule as schedule
    from kvferry.api.search import Found as Found
    from kvferry.api.search import search as search
    from kvferry.api.sweep import Sweep as Sweep
    from kvferry.api.sweep import sweep as sweep
    from kvferry.api.tune import Tuned as Tuned
    from kvferry.api.tune import tune as tune
    from kvferry.pipelines.plugins import Plugin as Plugin
    from kvferry.pipelines.plugins import use as use
    from kvferry.specs.errors import InputError as InputError
    from kvferry.specs.errors import KvferryError as KvferryError
    from kvferry.specs.scenario import Scenario as Scenario

# Where each name is from. All rooms are imported through this package, so nothing is before it is asked for.
_HOMES = {
    "load": "api.scenario",
    "override": "api.scenario",
    "run": "api.result",
    "compare": "api.comparison",
    "sweep": "api.sweep",
    "search": "api.search",
    "advise": "advice.advise",
    "calibrate": "api.calibration",
    "fidelity": "api.fidelity",
    "schedule": "api.schedule",
    "capacity": "api.capacity",
    "tune": "api.tune",
    "encode": "api.encode",
    "reproduce": "api.reproduce",
    "report": "api.report",
    "plot": "api.artefact",
    "pack": "api.artefact",
    "unpack": "api.artefact",
    "check": "api.artefact",
    "use": "pipelines.plugins",
    "Result": "api.result",
    "Comparison": "api.comparison",
    "Sweep": "api.sweep",
    "Found": "api.search",
    "Answer": "advice.answer",
    "Calibration": "api.calibration",
    "Fidelity": "api.fidelity",
    "Schedules": "api.schedule",
    "Tuned": "api.tune",
    "Reproduction": "api.reproduce",
    "Picture": "api.html",
    "Plugin": "pipelines.plugins",
    "Scenario": "specs.scenario",
    "KvferryError": "specs.errors",
    "InputError": "specs.errors",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvferry' has no attribute {name!r}")
    return getattr(import_module(f"kvferry.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
