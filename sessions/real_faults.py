"""Refusals: what a scenario asks of sessions that the real backend does not carry out, each with its key."""

from collections.abc import Iterator

from kvferry.scenarios.resolve import Complaint
from kvferry.sessions.systems import SessionSystem
from kvferry.specs.scenario import Scenario


def real_faults(scenario: Scenario, system: SessionSystem) -> Iterator[Complaint]:
    """Yields faults of a scenario whose backend is torch."""

    def at(role: str) -> tuple[str, ...]:
        return ("policies", role) if role in scenario.policies else ("system",)

    live, budget = scenario.session.live, scenario.session.budget
    if not system.decoding.roles.all_in_memory:
        what = f"{system.decode} decodes from KV elsewhere than in memory, which backend torch does for one batch alone"
        yield Complaint(at("decode"), f"{what}; policies.decode: vllm would do")
    if "cloud" in system.places:
        what = f"keep: {system.keep} sends KV to the cloud, and backend torch has there what conversations are about"
        yield Complaint(at("keep"), f"{what}; keep: memory-flash would do")
    if system.assisting is not None:
        yield Complaint(at("assist"), "backend torch answers turns on the device alone; leave assist out")
    if "flash" in system.places and budget.kept_flash_bytes is None:
        what = "is missing: a real file is as large as what may be kept in it"
        yield Complaint(("budget", "kept_flash"), f"{what}; kept_flash: 1 GiB would do")
    if live.kv_file is not None and "flash" not in system.places:
        yield Complaint(("live", "kv_file"), f"nothing is kept on flash: keep is {system.keep}; leave it out")
    if scenario.coupling != "all_heads":
        yield Complaint(("coupling",), "a real model computes all heads of a layer together; all_heads would do")
    if not live.processor.startswith(("cpu", "cuda")):
        what = "backend torch runs conversations on the CPU or with CUDA"
        yield Complaint(("live", "processor"), f"{what}; cpu would do")
