"""Refusals: what a scenario asks of decoding that it does not do, each with its key."""

from collections.abc import Callable, Iterator, Mapping

from kvferry.backends.needs import Needs, NoKv
from kvferry.backends.world import World
from kvferry.pipelines.decoding.budget import hold_workspace, left_bytes, most_kv
from kvferry.pipelines.decoding.offloaded import offload_faults
from kvferry.pipelines.decoding.systems import DecodeSystem
from kvferry.pipelines.missing_storage import without_storage
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Left, Process
from kvferry.policies.decode.kv_memory import latent_faults
from kvferry.policies.decode.roles import Roles
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario


def faults_of(scenario: Scenario, system: DecodeSystem) -> Iterator[Complaint]:
    """Faults of a scenario that are about its model, device and system together."""
    workload = scenario.decode.workload
    if scenario.coupling != "all_heads":
        yield Complaint(("coupling",), "is about contexts loaded in chunks; decode loads none, leave it out")
    for role, what in latent_faults(system.roles) if scenario.model.latent else ():
        if role not in scenario.policy_values:
            yield Complaint(("system",), f"its {role}: {what}")
            continue
        at = ("policies",) if role in scenario.policies else ("system_policies", scenario.system)
        yield Complaint((*at, role), what)
    if not system.roles.all_in_memory:
        for key in ("requests", "arrivals", "spread", "lengths", "trace"):
            if getattr(workload, key):
                what = f"{scenario.system} decodes one batch of equal prompts in lock step, all there at the start"
                yield Complaint(("workload", key), f"{what}; leave it out, or take a system with all KV in memory")
    yield from _without_storage(scenario, system)
    yield from window_faults(scenario, system.roles)
    yield from offload_faults(scenario, system)
    yield from _over_context(scenario)


def window_faults(scenario: Scenario, roles: Roles) -> Iterator[Complaint]:
    """Yields a complaint about windows of attention that are shorter than a sequence, where they are not modelled."""
    what = scenario.model.beyond_window(scenario.workload.longest_tokens)
    if what and (not roles.all_in_memory or roles.selector.evicts or roles.attention.needs_memory):
        would = "all KV in memory and paged attention would do, as vllm has it"
        yield Complaint(("model",), f"{what}; {scenario.system} does not model that, {would}")


def _without_storage(scenario: Scenario, system: DecodeSystem) -> Iterator[Complaint]:
    """KV that lies on storage, or overflows to it, on a device that has none."""
    placement, policies = system.roles.placement, scenario.policy_values
    if scenario.device.storage is not None or "storage" not in placement.tiers(most_kv(scenario, system.roles)):
        return
    role = policies.get("placement")
    inner = ("placement", "overflow") if isinstance(role, Mapping) and "overflow" in role else ("placement",)
    key = ("overflow",) if "overflow" in policies else inner
    fault = without_storage(scenario, f"is missing, on which {scenario.system} keeps KV")
    if key[0] not in policies:
        yield fault
        return
    at = ("policies",) if key[0] in scenario.policies else ("system_policies", scenario.system)
    would = fault.what.partition("; ")[2]
    what = f"storage is where KV would go, and device {scenario.device.name} has none"
    yield Complaint((*at, *key), f"{what}; say host, or {would}")


def _over_context(scenario: Scenario) -> Iterator[Complaint]:
    """A selection of more tokens than there will ever be, which the scenario's own policies ask for."""
    workload, policies = scenario.decode.workload, scenario.policy_values
    most = workload.context + workload.output
    asked: dict[tuple[str, ...], object] = {("selected_tokens",): policies.get("selected_tokens")}
    if isinstance(inner := policies.get("selector"), Mapping):
        asked["selector", "selected_tokens"] = inner.get("selected_tokens")
    for at, tokens in asked.items():
        if at[0] in scenario.policies and isinstance(tokens, int) and tokens > most:
            what = f"{tokens:,} is more than the {most:,} tokens that there will ever be"
            yield Complaint(("policies", *at), f"{what}; {most:,} would select all")


class NoRoomFlow:
    """A Flow that ends before its first op, with what intermediate values hold of the memory, if that fits."""

    def __init__(self, scenario: Scenario, roles: Roles, why: str) -> None:
        self._scenario, self._roles, self._why = scenario, roles, why

    @property
    def needs(self) -> Needs:
        return {DEVICE: NoKv()}

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        """Raises OutOfMemory."""
        if left_bytes(self._scenario, self._roles) >= 0:
            hold_workspace(world.machine, self._scenario, self._roles)
        raise OutOfMemory(self._why)
        yield

    def left(self, world: World, end: Totals) -> Left:
        return Left(requests=())

    def kept(self) -> str:
        return "nothing"
