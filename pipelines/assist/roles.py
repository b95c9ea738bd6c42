"""Both roles of a scenario: the device's, and the cloud that its machines make up."""

from collections.abc import Callable, Mapping
from typing import Any

import simpy

from kvferry.cloud.asked import Served
from kvferry.cloud.story import Story
from kvferry.machine.machine import Machine
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.assist.device_request import DeviceRequest
from kvferry.pipelines.assist.estimates import Estimates, names_file
from kvferry.pipelines.assist.instance import Instance
from kvferry.pipelines.assist.own_model import OwnModel
from kvferry.pipelines.assist.service import serve_device
from kvferry.pipelines.assist.systems import AssistSystem
from kvferry.policies.assist.fallback import Fallback
from kvferry.policies.assist.optimiser import Setting
from kvferry.policies.assist.serving import Serving
from kvferry.specs.scenario import Scenario

# Machines of a scenario that make up the cloud: instances that do both, or each one of the two.
BOTH, PREFILL, DECODE = "cloud", "prefill", "decode"


class Roles:
    """Of a scenario whose workload is assist, under a system. ``prefilling``, ``decoding``: instances by name. `own`:
    what a device's model does."""

    def __init__(self, scenario: Scenario, system: AssistSystem, own: type[OwnModel] = OwnModel) -> None:
        self._scenario, self._system, self._own = scenario, system, own
        self.prefilling = _instances(scenario, PREFILL) or _instances(scenario, BOTH)
        self.decoding = _instances(scenario, DECODE) or _instances(scenario, BOTH)
        # Whom devices talk to: the load balancer stands before the first instance.
        self.front = next(iter(self.prefilling), None)
        seen = None if self.front is None else scenario.seen_by(self.front)
        decodes = scenario.seen_by(self.decoding[0]) if self.decoding else None
        self._cloud_model = scenario.model if seen is None else seen.model
        self.estimates = _estimates(scenario, seen, decodes, system.serving)

    def request(self, machine: Machine, story: Story) -> DeviceRequest:
        front, wanted = self.front or "", self._system.assist
        return DeviceRequest(self._scenario, self.estimates, front, wanted, self._own, machine, story)

    def cloud(self, machines: Mapping[str, Machine], serves: Served, numbers: Callable[[int], int] = int) -> Cloud:
        estimates, serving = self.estimates, self._system.serving
        assert estimates.prefilling is not None and estimates.decoding is not None
        instances = {
            name: Instance(machines[name], prices, serving, estimates.kept_tpot_s, self._cloud_model.kv_bytes_per_token)
            for names, prices in ((self.prefilling, estimates.prefilling), (self.decoding, estimates.decoding))
            for name in names
        }
        cloud = Cloud(
            machines[self.prefilling[0]],
            [instances[name] for name in self.prefilling],
            [instances[name] for name in self.decoding],
            serving,
            self._scenario.assist.workload,
            numbers,
            serves,
        )
        for group, spec in self._scenario.machines.items():
            for number, name in enumerate(spec.instances(group)):
                if name in instances and (outages := spec.down(number)):
                    machines[name].env.process(cloud.goes_down(instances[name], outages))
        return cloud


def serve(cloud: Cloud, machine: Machine, story: Story) -> simpy.Process:
    """Has the cloud of this world wait for the story's request."""

    def tell(waited_s: float, prefill_s: float, refine_s: float) -> None:
        story.waited_s, story.cloud_prefill_s, story.refine_s = waited_s, prefill_s, refine_s

    return machine.env.process(serve_device(cloud, machine.outside.name, tell))


def promise(story: Story, found: Setting | Fallback) -> None:
    """Notes in a story the help that it is to get, or why it gets none or another."""
    setting = found.setting if isinstance(found, Fallback) else found
    if setting is not None:
        story.planned, story.ratio = setting.tokens, setting.ratio
        story.tokens = min(setting.tokens, story.output)
    if isinstance(found, Fallback) and found.by == "device":
        story.alone = str(found)
    elif isinstance(found, Fallback):
        story.beyond, story.tokens = str(found), story.tokens or story.output


# Of the last run, what estimates were made of, and these: one object, so that threads never take one's for another's.
_last: tuple[tuple[Any, ...], Estimates] | None = None


def _estimates(scenario: Scenario, seen: Scenario | None, decodes: Scenario | None, serving: Serving) -> Estimates:
    """Returns those of the run before where it differs in nothing that they go by: parts of many cells, or seeds, are
    run one after the other, and for each problem P of thousands of prompts would be solved."""
    global _last
    measured = [
        processor.measured for one in (scenario, seen, decodes) if one for processor in one.device.processors.values()
    ]
    links = [scenario.link, *(one.link for one in scenario.assist.workload.networks or ())]
    if any(measured) or any(names_file(way) for link in links for way in (link, link.up) if way is not None):
        # What was measured or recorded may have been so again.
        return Estimates(scenario, seen, decodes, serving)
    # Equal specs may differ in what their file says, of which estimates have notes.
    said = scenario.workload.model_fields_set - {"first_cell"}
    of = (*(one and _whatever_is_drawn(one) for one in (scenario, seen, decodes)), serving, said)
    made = _last
    if made is None or made[0] != of:
        _last = made = of, Estimates(scenario, seen, decodes, serving)
    return made[1]


def _whatever_is_drawn(scenario: Scenario) -> Scenario:
    """The scenario as all of them are that differ in their seed and in which of many cells they have."""
    workload = scenario.assist.workload.model_copy(update={"first_cell": 0})
    return scenario.model_copy(update={"seed": 0, "workload": workload})


def _instances(scenario: Scenario, name: str) -> tuple[str, ...]:
    return scenario.machines[name].instances(name) if name in scenario.machines else ()
