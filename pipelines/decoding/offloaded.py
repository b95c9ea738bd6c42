"""Weights that lie elsewhere: what a scenario asks that cannot be, and what a run says of it."""

from collections.abc import Iterator

from kvferry.pipelines.decoding.systems import DecodeSystem
from kvferry.pipelines.missing_storage import without_storage
from kvferry.policies.engine_memory import offload_of
from kvferry.policies.offload import Offload
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.offload import CPU
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import shown_size


def offload_faults(scenario: Scenario, system: DecodeSystem) -> Iterator[Complaint]:
    """Yields complaints about weights that lie elsewhere."""
    spec, device, model = scenario.decode.budget.offload, scenario.device, scenario.model
    if spec is None:
        return
    at = ("budget", "offload")
    if not system.roles.all_in_memory:
        what = f"is for systems that keep all KV in memory, and {scenario.system} does not; vllm would do"
        yield Complaint(at, what)
    if scenario.backend != "sim":
        yield Complaint(at, f"is modelled alone; backend {scenario.backend} has all weights in one memory")
    if spec.what == "experts" and model.experts is None:
        yield Complaint((*at, "what"), f"{model.name} has no experts; layers would do")
    if spec.what == "experts" and spec.to != "cpu":
        what = f"experts: which of them a layer needs is known too late to bring them from {spec.to}; to: cpu would do"
        yield Complaint((*at, "what"), what)
    if spec.to == "storage" and device.storage is None:
        yield without_storage(scenario, "is missing, on which weights would lie")
    if spec.to != "storage" and device.memory.unified:
        yield Complaint((*at, "to"), f"{spec.to}: {device.name} has one memory for all; storage would do")
    elif spec.to == "cpu" and (CPU not in device.processors or device.main == CPU):
        has = f"{device.name} has no processor {CPU} beside its main one"
        yield Complaint((*at, "to"), f"{has}; host would do, or a device profile with one")
    offload = offload_of(scenario)
    assert offload is not None
    if offload.layers and offload.moves_kv and model.exceeds_window(scenario.workload.longest_tokens):
        what = f"layers on the CPU are not modelled behind a window of {model.window:,} tokens ({model.name})"
        yield Complaint((*at, "to"), f"{what}; what: experts, to: host or shorter sequences would do")
    if offload.layers > offload.most:
        would = f"; processor: {CPU} has all of them there" if spec.to == "cpu" and spec.what == "layers" else ""
        yield Complaint((*at, "layers"), f"{offload.layers} are too many; at most {offload.most} would do{would}")


def said_of(offload: Offload) -> str:
    """Returns what a run says of weights that lie elsewhere."""
    spec, model = offload.spec, offload.model
    if not offload.layers:
        return "budget.offload: all weights fit into the processor's memory, none lie elsewhere"
    what = "the experts" if spec.what == "experts" else "weights"
    what = f"{what} of {offload.layers} of {model.layers} layers ({shown_size(offload.away_bytes)})"
    where = "on storage" if spec.to == "storage" else "in the host's memory"
    does = "the CPU computes new tokens with them" if spec.to == "cpu" else "they are brought for every token"
    return f"budget.offload: {what} lie {where}, and {does}"
