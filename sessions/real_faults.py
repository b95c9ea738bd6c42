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
    roles = system.decoding.roles
    if not roles.all_in_memory and not live.processor.startswith("cpu"):
        what = "backend torch runs turns whose KV lies elsewhere than in memory on the CPU"
        yield Complaint(("live", "processor"), f"{what}; cpu would do, or policies.decode: vllm")
    if system.assisting is not None:
        # Real KV in the cloud is encoded, and no machine goes on from that.
        what = "a real cloud that helps is sent whole prompts, and has no KV to go on from"
        if "cloud" in system.places:
            yield Complaint(at("keep"), f"keep: {system.keep}: {what}; keep: memory-flash would do")
        if scenario.session.workload.in_cloud != "nothing":
            yield Complaint(("workload", "in_cloud"), f"{what}; in_cloud: nothing would do")
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
