"""Refusals: what a scenario asks of sessions that they do not do, each with its key."""

from collections.abc import Iterator

from kvferry.pipelines.assist.estimates import window_of
from kvferry.pipelines.assist.roles import BOTH, DECODE, PREFILL
from kvferry.pipelines.assist.systems import AssistSystem
from kvferry.pipelines.decoding.faults import window_faults
from kvferry.pipelines.decoding.runtimes import runtime_of
from kvferry.pipelines.missing_storage import without_storage
from kvferry.policies.decode.blocking import ValueGroups
from kvferry.scenarios.resolve import Complaint
from kvferry.sessions.real_faults import real_faults
from kvferry.sessions.systems import SessionSystem
from kvferry.specs.errors import InputError
from kvferry.specs.link import NoLink
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import shown_size
from kvferry.traces.turn import USUAL_BLOCK
from kvferry.traces.turns import turns_of


def session_faults(scenario: Scenario, system: SessionSystem) -> Iterator[Complaint]:
    """Yields faults of a scenario that are about its model, device and system together."""
    workload, budget, roles = scenario.session.workload, scenario.session.budget, system.decoding.roles
    if scenario.backend == "torch":
        yield from real_faults(scenario, system)
    if scenario.model.latent is not None:
        what = "has a latent cache (model.latent), and contexts are stored as keys and values of heads"
        yield Complaint(("model",), f"{scenario.model.name} {what}; a model without it would do")
    yield from window_faults(scenario, roles)
    if scenario.model.exceeds_window(workload.longest_tokens):
        yield from _loading_windows(scenario, system)
    if isinstance(scenario.link, NoLink) and (why := _why_a_link(scenario, system)):
        yield Complaint(("link",), f"is missing, where {why}; --set 'link={{rate: 100 Mbit/s, rtt: 20 ms}}'")
    block = workload.block or USUAL_BLOCK
    if workload.trace is not None:
        try:
            block = turns_of(workload, scenario.seed).block
        except InputError as error:
            yield Complaint(("workload", "trace"), str(error).removeprefix("workload.trace: "))
    at = ("policies", "decode") if "decode" in scenario.policies else ("system",)
    if roles.selector.evicts:
        what = f"{system.decode} gives up the KV of a prompt's beginning, behind which no later turn can go on"
        yield Complaint(at, f"{what}; a system that keeps all KV would do")
    if roles.placement.mapped and not roles.all_in_memory:
        what = f"{system.decode} maps one file into memory for a whole run, and turns have files of their own"
        yield Complaint(at, f"{what}; kvswap or flexgen would do")
    if "flash" in system.places and isinstance(roles.layout, ValueGroups):
        what = f"{system.decode} writes values alone to flash, and the next turn needs keys, too"
        yield Complaint(at, f"{what}; keep: memory or cloud, or another decode system would do")
    if system.assisting is not None:
        yield from _assist_faults(scenario, system, system.assisting)
    needs_storage = "flash" in system.places or roles.placement.away == "storage"
    if needs_storage and scenario.device.storage is None:
        who = f"{system.decode} keeps KV" if roles.placement.away == "storage" else "KV is kept between turns"
        yield without_storage(scenario, f"is missing, where {who}")
    block_bytes = block * scenario.model.kv_bytes_per_token
    for place in ("memory", "flash"):
        kept_bytes = getattr(budget, f"kept_{place}_bytes")
        if kept_bytes is not None and kept_bytes < block_bytes and place in system.places:
            what = (
                f"{shown_size(kept_bytes)} hold no block of {block:,} tokens, {shown_size(block_bytes, up=True)} would"
            )
            yield Complaint(
                ("budget", f"kept_{place}"), f"{what}; or a smaller workload.block, or keep without {place}"
            )


def _why_a_link(scenario: Scenario, system: SessionSystem) -> str:
    """Returns what of conversations needs a link; "": nothing does."""
    if system.assisting is not None:
        return "a cloud helps"
    if "cloud" in system.places:
        return "KV is kept in the cloud (policies.keep: memory-flash would do, too)"
    stored = system.codec is not None and scenario.session.workload.in_cloud == "contexts"
    return "contexts lie in the cloud (workload.in_cloud: nothing would do, too)" if stored else ""


def _loading_windows(scenario: Scenario, system: SessionSystem) -> Iterator[Complaint]:
    """Yields what is not modelled of a model whose layers attend to a window: KV that is loaded."""
    what = f"loading KV is not modelled for {scenario.model.name}, whose layers attend to a window"
    if not {*system.places} <= {"memory"}:
        yield Complaint(("policies", "keep"), f"{what}; keep: memory or drop would do")
    if system.codec is not None and scenario.session.workload.in_cloud == "contexts":
        yield Complaint(("workload", "in_cloud"), f"{what}; in_cloud: nothing would do, or load: local-prefill")
    if system.assisting is not None:
        yield Complaint(("policies", "assist"), "is not modelled for layers that attend to a window; leave it out")


def _assist_faults(scenario: Scenario, system: SessionSystem, assisting: AssistSystem) -> Iterator[Complaint]:
    at = ("policies", "assist")
    if assisting.answers != "helped" or assisting.assist.ratio != 1.0:
        what = f"{system.assist} leaves a device without the KV of what is new, from which its next turn goes on"
        yield Complaint(at, f"{what}; tokens-only would do")
    if not system.decoding.roles.all_in_memory:
        what = (
            f"{system.decode} decodes from KV elsewhere than in memory, and a cloud's tokens are decoded through there"
        )
        yield Complaint(at, f"{what}; policies.decode: vllm would do")
    known = {*scenario.machines}
    if not (known == {BOTH} or known == {PREFILL, DECODE}):
        what = f"{system.assist} needs a cloud: instances called {BOTH}, or some called {PREFILL} and {DECODE}"
        yield Complaint(("machines",), what)
    if window_of(scenario.device) is not None:
        what = f"{scenario.device.main} attends to a window, and turns to all that came before"
        yield Complaint(at, f"{what}; another processor would do")


def without_effect(scenario: Scenario, system: SessionSystem) -> Iterator[str]:
    """Yields what a scenario says of places where its system keeps nothing, and of software that it does not have."""
    for place in ("memory", "flash"):
        if getattr(scenario.session.budget, f"kept_{place}_bytes") is not None and place not in system.places:
            yield f"budget.kept_{place} has no effect: keep is {system.keep}"
    if scenario.runtime is not None and runtime_of(scenario) is None:
        yield f"runtime has no effect: {system.decode} decodes from KV in memory, whole steps at once"
