"""The assist workload: requests of many devices with one cloud, and what they leave behind."""

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count

import numpy as np
import simpy

from kvferry.backends.needs import Needs, Prompts
from kvferry.backends.world import NO_INPUTS, Inputs, World
from kvferry.cloud.asked import Served
from kvferry.cloud.story import Story
from kvferry.machine.instant import at
from kvferry.machine.machine import Machine
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.assist.promises import beyond_tolerated
from kvferry.pipelines.assist.roles import BOTH, DECODE, PREFILL, Roles, promise, serve
from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS, AssistSystem
from kvferry.pipelines.missing_storage import without_storage
from kvferry.pipelines.record import Assisted, RequestRecord
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Flow, Left, Process, Progress, System
from kvferry.policies.assist.fallback import Fallback
from kvferry.policies.assist.optimiser import Setting
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.assist import AssistSpec
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario
from kvferry.traces.assisted import assisted_requests, networks_of
from kvferry.traces.coverage import Coverage
from kvferry.traces.request import Request

# Progress is reported every this many requests.
_PROGRESS_REQUESTS = 64
# Requests whose tokens a run keeps one by one; of all it keeps figures.
MOST_STORIES = 1000
# What is noted of requests that have such a word in their story.
_NOTES = {
    "alone": "without the cloud",
    "beyond": "with other help than problem P has",
    "happened": "without all of the cloud's help",
}


class Assist:
    """A WorkloadKind."""

    headline = "ttft_s"

    def of_many_machines(self, scenario: Scenario) -> bool:
        return True

    @property
    def systems(self) -> Mapping[str, System]:
        return ASSIST_SYSTEMS

    def faults(self, scenario: Scenario, system: System) -> Iterator[Complaint]:
        assert isinstance(system, AssistSystem)
        known = {*scenario.machines}
        for name in sorted(known - {BOTH, PREFILL, DECODE}):
            what = f"plays no part; a cloud is {BOTH}, or {PREFILL} and {DECODE}"
            yield Complaint(("machines", name), what, at_key=True)
        if system.needs_a_cloud and not (known == {BOTH} or known == {PREFILL, DECODE}):
            what = f"{scenario.system} needs a cloud: instances called {BOTH}, or some called {PREFILL} and {DECODE}"
            yield Complaint(("machines",), what)
        if len({machine.model.name for machine in scenario.machines.values()}) > 1:
            yield Complaint(("machines", DECODE, "model"), f"is another than {PREFILL}'s, whose KV it goes on from")
        # Where the cloud answers to the last token, the device's model is not asked.
        if system.answers != "cloud" and not scenario.assist.workload.resident and scenario.device.storage is None:
            what = "is missing, from which the model is loaded at each request"
            yield without_storage(scenario, what, ", or --set workload.resident=true")
        fault = scenario.assist.workload.fault
        waits = system.answers in ("cloud", "in-turns") and system.assist.patience_s is None
        if fault is not None and fault.what == "stalls" and waits:
            what = "stalls would be waited for without end, as policies.assist.patience is null; say how long"
            yield Complaint(("workload", "fault", "what"), what)
        yield from _modelled_alone(scenario, system)
        if scenario.load is not None:
            yield Complaint(("load",), "is not known of these devices; leave it out", at_key=True)

    def medium(self, scenario: Scenario) -> str:
        link = scenario.link
        over = link.trace or f"{8e-6 * (link.rate_bytes_per_s or 0):.4g} Mbit/s"
        return f"{scenario.assist.workload.devices:,} devices over {over}"

    def remark(self, scenario: Scenario) -> str | None:
        return None

    def flow(self, scenario: Scenario, system: System, progress: Progress, inputs: Inputs = NO_INPUTS) -> Flow:
        assert isinstance(system, AssistSystem)
        return AssistFlow(scenario, system, progress, inputs)


class AssistFlow:
    """A Flow. A device answers one request at a time; the ones that come meanwhile wait for it."""

    def __init__(self, scenario: Scenario, system: AssistSystem, progress: Progress, inputs: Inputs) -> None:
        self._scenario, self._system, self._progress = scenario, system, progress
        workload = scenario.assist.workload
        self._requests = assisted_requests(workload, scenario.seed).as_they_came(inputs.arrivals)
        self._roles = Roles(scenario, system)
        self._device = self._roles.device()
        self._cloud: Cloud | None = None
        self._networks = networks_of(workload, scenario.seed)
        self._coverage: Coverage | None = None
        if workload.churn is not None:
            self._coverage = Coverage(workload.churn, scenario.seed, workload.cells, workload.first_cell)
        self._links = {n: one.link for n, one in enumerate(workload.networks or ())}
        # By network and prompt's length.
        self._settings: dict[tuple[int, int], Setting | Fallback] = {}
        self._busy: dict[int, deque[int]] = {}
        # Of every request that has ended, a figure for each column; and the first ones' stories.
        self._figures = array("d")
        self._stories: list[Story] = []
        # Requests that the cloud has in hand.
        self._serving: dict[simpy.Event, None] = {}
        self._done = 0
        # By attribute of a story: requests that have it, and what the first of them has.
        self._noted: dict[str, tuple[int, str]] = {}
        # Whether prompts stay on their device, and why.
        self._stays: str | None = None
        self._all_done: simpy.Event | None = None

    @property
    def needs(self) -> Needs:
        cloud = (*self._roles.prefilling, *self._roles.decoding) if self._system.needs_a_cloud else ()
        return dict.fromkeys((DEVICE, *cloud), Prompts())

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        env = world.machine.env
        self._stays = _stays(self._scenario.assist.workload, world)
        self._all_done = env.event()
        # Where the cloud is elsewhere, the device's role is all that happens here.
        if self._system.needs_a_cloud and self._roles.front in world.machines:
            self._cloud = self._roles.cloud(world.machines, Served())
        env.process(self._arrivals(world))
        yield self._all_done
        # The cloud may hear later than the user that it was the last word.
        yield env.all_of(list(self._serving))

    @property
    def most_message_bytes(self) -> int:
        """Of a device of another process. A ServedFlow."""
        return self._serves.message_bytes

    @property
    def _serves(self) -> Served:
        return Served.around(int(self._requests.prompts.max()), int(self._requests.outputs.max()))

    def cloud_role(self, machines: Mapping[str, Machine]) -> Callable[[str, str], Process]:
        """The cloud's role, for devices of other processes: request after request. A ServedFlow."""
        numbers = count()
        cloud = self._roles.cloud(machines, self._serves, lambda request: next(numbers))

        def served(machine: str, device: str) -> Process:
            while (yield from cloud.serve(device, lambda *seconds: None)):
                pass

        return served

    def left(self, world: World, end: Totals) -> Left:
        table = np.array(self._figures).reshape(-1, len(_COLUMNS))
        columns = {name: table[:, n].copy() for n, name in enumerate(_COLUMNS)}
        n, kept = len(table), len(self._stories)
        notes = [*self._requests.notes]
        for key in filter(self._noted.__contains__, _NOTES):
            found, first = self._noted[key]
            notes.append(f"{found:,} of {n:,} requests {_NOTES[key]}: {first}")
        if said := self._roles.estimates.least_ratio_note(int(columns["prompt"].max(initial=0))):
            notes.append(said)
        estimates, wanted = self._roles.estimates, self._system.assist
        notes += beyond_tolerated(columns, self._scenario.assist.workload, estimates, wanted)
        if n > kept:
            notes.append(f"token by token are kept the first {kept:,} of {n:,} requests")
        return Left(
            requests=[
                RequestRecord(
                    request=story.request,
                    arrival_s=story.arrival_s,
                    first_token_s=story.first_s,
                    token_times_s=tuple(story.shown_s.tolist()),
                )
                for story in sorted(self._stories, key=lambda story: story.request)
            ],
            assisted=Assisted(
                columns=columns,
                cloud=self._cloud_figures(columns["arrival_s"]),
                energy_j=world.crowd.stays_j(),
                answers={one.request: one.answer for one in self._stories if one.answer is not None},
                devices=self._scenario.assist.workload.devices,
            ),
            notes=tuple(notes),
        )

    def _cloud_figures(self, arrivals_s: np.ndarray) -> dict[str, float]:
        cloud = self._cloud
        if cloud is None or not cloud.served or not len(arrivals_s):
            return {}
        took_s = cloud.served_by_s - float(arrivals_s.min())
        figures = {
            "cloud_throughput_requests_per_s": cloud.served / took_s,
            "slot_occupancy": cloud.held_s / (cloud.slots.all * took_s),
            "cloud_batch": cloud.batch,
            "cloud_latency_s": cloud.held_s / cloud.served,
        }
        if self._system.serving.prefix_caching:
            figures["cloud_prefix_share"] = cloud.known_tokens / cloud.prompt_tokens
        return figures

    def _ended(self, story: Story) -> None:
        self._figures.extend(_figures_of(story).values())
        for key in filter(partial(getattr, story), _NOTES):
            n, first = self._noted.get(key, (0, getattr(story, key)))
            self._noted[key] = n + 1, first
        if len(self._stories) < MOST_STORIES:
            self._stories.append(story)
        self._done += 1
        if self._done % _PROGRESS_REQUESTS == 0:
            self._progress(self._done, len(self._requests))

    def kept(self) -> str:
        return f"{self._done:,} of {len(self._requests):,} requests"

    # --- requests as they come -----------------------------------------------------------------------------------

    def _arrivals(self, world: World) -> Process:
        env, requests = world.machine.env, self._requests
        for n, (arrival_s, device) in enumerate(
            zip(requests.arrivals_s.tolist(), requests.devices.tolist(), strict=True)
        ):
            if arrival_s > env.now:
                yield at(env, arrival_s)
            if not requests.closed:
                prompt, output = int(requests.prompts[n]), int(requests.outputs[n])
                world.content.arrived.append(Request(env.now, prompt, output, source=device))
            if device in self._busy:
                self._busy[device].append(n)
            else:
                self._busy[device] = deque()
                env.process(self._served(world, device, n))

    def _served(self, world: World, device: int, request: int) -> Process:
        """A device's requests one after the other, as long as there are any."""
        more = self._busy[device]
        while True:
            story = self._story(request, world.machine.env.now)
            yield from self._answered(world, story)
            self._ended(story)
            if not more:
                break
            request = more.popleft()
        del self._busy[device]
        if self._done == len(self._requests):
            assert self._all_done is not None
            self._all_done.succeed()

    def _answered(self, world: World, story: Story) -> Process:
        network = int(self._networks[story.device])
        machine = world.crowd.device(story.device, self._links.get(network))
        role = self._device.alone
        if story.tokens and self._coverage is not None:
            self._while_online(world, story, self._coverage)
        if story.tokens:
            if self._cloud is not None:
                self._serve(self._cloud, machine, story)
            role = {
                "helped": self._device.helped if story.planned else self._device.through_the_cloud,
                "cloud": self._device.through_the_cloud,
                "in-turns": self._device.in_turns,
            }[self._system.answers]
        yield from role(machine, story)
        world.crowd.leave(story.device)

    def _while_online(self, world: World, story: Story, coverage: Coverage) -> None:
        """Keeps an offline device from asking the cloud, and ends its conversation when it goes offline."""
        env = world.machine.env
        online, until_s = coverage.of(story.device, env.now)
        if not online:
            story.tokens, story.planned, story.ratio, story.alone = 0, 0, 1.0, "the device is offline"
            return
        goes = at(env, until_s)
        assert goes.callbacks is not None
        goes.callbacks.append(lambda _: story.go_offline())

    def _serve(self, cloud: Cloud, machine: Machine, story: Story) -> None:
        """Have the cloud of this world wait for the story's request."""
        serving = serve(cloud, machine, story)
        self._serving[serving] = None
        serving.callbacks.append(self._serving.pop)

    def _story(self, n: int, now_s: float) -> Story:
        """A request with the help that it is to get."""
        requests = self._requests
        story = Story(
            request=n,
            device=int(requests.devices[n]),
            prompt=int(requests.prompts[n]),
            output=int(requests.outputs[n]),
            scene=int(requests.scenes[n]),
            arrival_s=now_s if requests.closed else float(requests.arrivals_s[n]),
            began_s=now_s,
        )
        if not self._system.needs_a_cloud:
            return story
        if self._stays is not None:
            story.alone = self._stays
        elif self._system.answers != "helped":
            story.tokens = story.output
        else:
            promise(story, self._setting(int(self._networks[story.device]), story.prompt))
        return story

    def _setting(self, network: int, prompt: int) -> Setting | Fallback:
        """What help a prompt of this length gets on this network: tabulated (procedure 1)."""
        key = network, prompt
        if key not in self._settings:
            link = self._links.get(network, self._scenario.link)
            self._settings[key] = self._roles.estimates.help(prompt, link, self._system.assist)
        return self._settings[key]


def _modelled_alone(scenario: Scenario, system: AssistSystem) -> Iterator[Complaint]:
    why = {"prefix_caching": "prompts begin differently", "batched_prefill": "prompts are read one by one"}
    for name, what in why.items() if scenario.backend != "sim" else ():
        if getattr(system.serving, name):
            said = f"is modelled alone: with backend {scenario.backend} {what}"
            yield Complaint(("policies", "serving", name), said)
    if scenario.backend != "sim":
        said = f"is modelled alone; backend {scenario.backend} has workload.fault for what goes wrong"
        for key in ("churn", "cells"):
            if getattr(scenario.assist.workload, key) is not None:
                yield Complaint(("workload", key), said, at_key=True)
        for name in (name for name, machine in scenario.machines.items() if machine.outages):
            yield Complaint(("machines", name, "outages"), said, at_key=True)


def _stays(workload: AssistSpec, world: World) -> str | None:
    """Why prompts stay on their device; None: they may leave it."""
    if workload.privacy == "stays":
        return "workload.privacy: prompts stay on the device"
    if workload.privacy is None and world.crowd.private:
        return "workload.privacy is not set, and real prompts stay on the device unless it says may-leave"
    return None


def _right(story: Story) -> float:
    """Whether the answer begins as it should; NaN where that is not known."""
    if story.wanted is None or story.answer is None:
        return math.nan
    return float(story.answer.startswith(story.wanted))


def _since(end_s: float | None, start_s: float | None) -> float:
    return math.nan if end_s is None or start_s is None else end_s - start_s


def _figures_of(one: Story) -> dict[str, float]:
    """What is kept of every request, by column."""
    shown_s = one.shown_s
    return {
        "request": one.request,
        "arrival_s": one.arrival_s,
        "began_s": one.began_s,
        "first_s": _since(one.first_s, 0.0),
        "own_first_s": _since(one.own_first_s, 0.0),
        "last_s": float(shown_s[-1]) if len(shown_s) else math.nan,
        "shown": len(shown_s),
        "largest_gap_s": float((shown_s[1:] - shown_s[:-1]).max()) if len(shown_s) > 1 else math.nan,
        "prompt": one.prompt,
        "tokens": one.tokens,
        "ratio": one.ratio,
        "pace_s": math.nan if one.pace_s is None else one.pace_s,
        "prepared_s": _since(one.asked_s, one.began_s),
        "answered_s": _since(one.first_s, one.asked_s),
        "waited_s": one.waited_s if one.tokens else math.nan,
        "cloud_prefill_s": one.cloud_prefill_s if one.tokens else math.nan,
        "refined_s": one.refine_s if one.tokens else math.nan,
        "unpacked_s": _since(one.unpacked_s, one.first_s),
        "own_prefill_s": _since(one.own_first_s, one.unpacked_s),
        "came": one.came,
        "corrected": math.nan if one.corrected is None else one.corrected,
        "lost": one.happened is not None,
        "right": _right(one),
        "response_bytes": one.response_bytes if one.tokens else math.nan,
    }


_COLUMNS = tuple(_figures_of(Story(0, 0, 0, 0, 0, 0.0)))
