"""The role of a modelled cloud, and devices that are played by a test; costs as in ``assisted``."""

from contextlib import suppress
from typing import Any

from assisted import BY_HAND
from tiny import changed, tiny

from kvferry.backends.sim.world import SimWorld
from kvferry.backends.world import NO_INPUTS
from kvferry.machine.channel import Channel, ChannelBroken
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS
from kvferry.pipelines.assist.workload import AssistFlow

REQUEST: dict[str, Any] = {
    "request": 0,
    "prompt": 1000,
    "text": None,
    "answer": 10,
    "scene": 0,
    "tokens": 5,
    "ratio": 1.0,
    "pace_s": None,
    "drafts": False,
    "accepted": 0.5,
    "refiner": "weighted-sentences",
}


class ServedCloud:
    """The role of a modelled cloud that serves prompts of 10,000 tokens, and devices that are played by a test."""

    def __init__(self, serving: str = "{name: slots}", **changes: Any) -> None:
        long = {"prompt": 10_000, "output": 3000}
        scenario = tiny(changed(BY_HAND, workload=long, **changes), f"policies.serving={serving}")
        system = ASSIST_SYSTEMS["pd-device"].with_policies(scenario.policy_values)
        flow = AssistFlow(scenario, system, lambda done, of: None, NO_INPUTS)
        made: list[Cloud] = []
        really = flow._roles.cloud

        def keep(*args: Any) -> Cloud:
            made.append(really(*args))
            return made[0]

        flow._roles.cloud = keep  # type: ignore[method-assign]
        self._world = SimWorld(scenario, flow.needs, NO_INPUTS, lambda span: None)
        self.env, self._devices = self._world.machine.env, 0
        self._role = flow.cloud_role(self._world.machines)
        (self.cloud,) = made
        self._front = self.cloud.front.name

    def device(self) -> Channel:
        """The end of another device."""
        machine = self._world.crowd.device(self._devices)
        self._devices += 1
        self.env.process(self._role(self._front, machine.name))
        return machine.open(self._front)

    def asks(self, at_s: float, leaves_s: float | None = None, **changes: Any) -> "Asked":
        return Asked(self, at_s, leaves_s, REQUEST | changes)

    def holds_nothing(self) -> bool:
        instances = {*self.cloud.prefilling, *self.cloud.decoding}
        slots = self.cloud.admission.slots
        return not any(slots.held) and not any(one.kv.is_used or one.prefilling for one in instances)


class Asked:
    """What a device asks at some time, and when it is answered; it leaves at another time, or never."""

    def __init__(self, served: ServedCloud, at_s: float, leaves_s: float | None, request: dict[str, Any]) -> None:
        self.first_s: float | None = None
        self.ended_s: float | None = None
        self._env, self._at_s, self._leaves_s, self._request = served.env, at_s, leaves_s, request
        self._channel = served.device()
        self._env.process(self._ask())
        if leaves_s is not None:
            self._env.process(self._leave())

    def _ask(self) -> Any:
        yield self._env.timeout(self._at_s)
        # It weighs nothing, and is there after half a round trip.
        self._channel.send(self._request, 0.0)
        with suppress(ChannelBroken):
            yield self._channel.receive()
            self.first_s = self._env.now
            if self._request["tokens"] > 1:
                yield self._channel.receive()
            self.ended_s = self._env.now

    def _leave(self) -> Any:
        yield self._env.timeout(self._leaves_s)
        self._channel.hang_up()


def until(served: ServedCloud, time_s: float) -> None:
    served.env.run(until=time_s)
