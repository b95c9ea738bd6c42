"""The assist workload: requests of many devices with one cloud, and what they leave behind."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count

import simpy

from kvferry.backends.needs import Needs, Prompts
from kvferry.backends.world import NO_INPUTS, Inputs, World
from kvferry.cloud.asked import Served
from kvferry.cloud.story import Story
from kvferry.machine.instant import at
from kvferry.machine.machine import Machine
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.assist.device import alone, helped, in_turns, through_the_cloud
from kvferry.pipelines.assist.promises import beyond_tolerated
from kvferry.pipelines.assist.queues import Queues
from kvferry.pipelines.assist.roles import BOTH, DECODE, PREFILL, Roles, promise, serve
from kvferry.pipelines.assist.service import serve_device
from kvferry.pipelines.assist.stories import MOST_STORIES, Stories
from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS, AssistSystem
from kvferry.pipelines.missing_storage import without_storage
from kvferry.pipelines.record import Assisted
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Flow, Left, Process, Progress, System
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario
from kvferry.traces.assisted import assisted_requests, networks_of
from kvferry.traces.coverage import Coverage

# Progress is reported every this many requests.
_PROGRESS_REQUESTS = 64


class Assist:
    """A WorkloadKind."""

    headline = "ttft_s"
    systems: Mapping[str, System] = ASSIST_SYSTEMS

    def of_many_machines(self, scenario: Scenario) -> bool:
        return True

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
    """A Flow."""

    def __init__(self, scenario: Scenario, system: AssistSystem, progress: Progress, inputs: Inputs) -> None:
        self._scenario, self._system, self._progress = scenario, system, progress
        workload = self._workload = scenario.assist.workload
        self._requests = assisted_requests(workload, scenario.seed).as_they_came(inputs.arrivals)
        self._roles = Roles(scenario, system)
        self._cloud: Cloud | None = None
        self._networks = networks_of(workload, scenario.seed)
        self._links = {n: one.link for n, one in enumerate(workload.networks or ())}
        seed, cells, first, churn = scenario.seed, workload.cells, workload.first_cell, workload.churn
        self._coverage = None if churn is None else Coverage(churn, seed, cells, first)
        # Of requests that have ended.
        self._stories = Stories()
        # Requests that the cloud has in hand.
        self._serving: dict[simpy.Event, None] = {}
        # Why prompts stay on their device; None: they may leave it.
        self._stays: str | None = None

    @property
    def needs(self) -> Needs:
        cloud = (*self._roles.prefilling, *self._roles.decoding) if self._system.needs_a_cloud else ()
        return dict.fromkeys((DEVICE, *cloud), Prompts())

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        env = world.machine.env
        if self._workload.privacy == "stays":
            self._stays = "workload.privacy: prompts stay on the device"
        elif self._workload.privacy is None and world.crowd.private:
            self._stays = "workload.privacy is not set, and real prompts stay on the device unless it says may-leave"
        queues = Queues(world, self._requests, partial(self._answered, world))
        # Where the cloud is elsewhere, the device's role is all that happens here.
        if self._system.needs_a_cloud and self._roles.front in world.machines:
            self._cloud = self._roles.cloud(world.machines, Served())
        env.process(queues.arrive())
        yield queues.all_done
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
            while (yield from serve_device(cloud, device, lambda *seconds: None)):
                pass

        return served

    def left(self, world: World, end: Totals) -> Left:
        stories, estimates, cloud = self._stories, self._roles.estimates, self._cloud
        columns = stories.columns()
        notes = [*self._requests.notes, *stories.notes()]
        if said := estimates.least_ratio_note(int(columns["prompt"].max(initial=0))):
            notes.append(said)
        notes += beyond_tolerated(columns, self._workload, estimates, self._system.assist)
        if len(stories) > MOST_STORIES:
            notes.append(f"token by token are kept the first {MOST_STORIES:,} of {len(stories):,} requests")
        assisted = Assisted(
            columns=columns,
            cloud={} if cloud is None or not len(stories) else cloud.figures(float(columns["arrival_s"].min())),
            energy_j=world.crowd.stays_j(),
            answers=stories.answers(),
            devices=self._workload.devices,
        )
        return Left(requests=stories.records(), assisted=assisted, notes=tuple(notes))

    def kept(self) -> str:
        return f"{len(self._stories):,} of {len(self._requests):,} requests"

    # --- a request -----------------------------------------------------------------------------------------------

    def _answered(self, world: World, request: int) -> Process:
        story = self._story(request, world.machine.env.now)
        machine = world.crowd.device(story.device, self._links.get(int(self._networks[story.device])))
        role = alone
        if story.tokens and self._coverage is not None:
            self._while_online(world, story, self._coverage)
        if story.tokens:
            if self._cloud is not None:
                serving = serve(self._cloud, machine, story)
                self._serving[serving] = None
                serving.callbacks.append(self._serving.pop)
            role = {
                "helped": helped if story.planned else through_the_cloud,
                "cloud": through_the_cloud,
                "in-turns": in_turns,
            }[self._system.answers]
        yield from role(self._roles.request(machine, story))
        world.crowd.leave(story.device)
        self._stories.add(story)
        if len(self._stories) % _PROGRESS_REQUESTS == 0:
            self._progress(len(self._stories), len(self._requests))

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
            link = self._links.get(int(self._networks[story.device]), self._scenario.link)
            promise(story, self._roles.estimates.help(story.prompt, link, self._system.assist))
        return story


def _modelled_alone(scenario: Scenario, system: AssistSystem) -> Iterator[Complaint]:
    if scenario.backend == "sim":
        return
    why = {"prefix_caching": "prompts begin differently", "batched_prefill": "prompts are read one by one"}
    for name in filter(partial(getattr, system.serving), why):
        said = f"is modelled alone: with backend {scenario.backend} {why[name]}"
        yield Complaint(("policies", "serving", name), said)
    said = f"is modelled alone; backend {scenario.backend} has workload.fault for what goes wrong"
    for key in ("churn", "cells"):
        if getattr(scenario.assist.workload, key) is not None:
            yield Complaint(("workload", key), said, at_key=True)
    for name in (name for name, machine in scenario.machines.items() if machine.outages):
        yield Complaint(("machines", name, "outages"), said, at_key=True)
