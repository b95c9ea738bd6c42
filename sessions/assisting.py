"""A cloud that helps with what is new in a turn, as a stage of it: P/D-Device's roles behind KV that both have."""

from collections.abc import Sequence
from typing import Literal

from kvferry.backends.world import World
from kvferry.cloud.asked import Served
from kvferry.cloud.story import Behind, Story
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.assist.device import helped
from kvferry.pipelines.assist.own_model import OwnModel
from kvferry.pipelines.assist.roles import Roles, promise, serve
from kvferry.pipelines.assist.systems import AssistSystem
from kvferry.sessions.answering import Answered, Ask, InMemory, Process, attends_to_all, leased, read_prompt
from kvferry.specs.assist import MOST_ASSISTED_TOKENS, AssistBudget, AssistLive, AssistSpec
from kvferry.specs.scenario import Scenario
from kvferry.traces.turn import Turn


class _OfTurns(OwnModel):
    """A device's model in a turn: the turn holds its memory, and prompts are read as without help."""

    keeps = True

    def prefill(self, tokens: int, before: int, after: tuple[Ticket, ...]) -> Ticket:
        known, model = self._story.behind.here + before, self._scenario.model
        return read_prompt(self._machine, model, self.kernel, tokens, known, self._story.request, after)

    def hold(self, tokens: int) -> None:
        super().hold(0)


class Assisted:
    """An AnswerStage: the cloud reads what is new, too, and its first tokens are shown until the device has its own,
    which reads all of it and decodes through them. What the turn leaves is whole."""

    works_on: Literal["memory", "flash"] = "memory"
    notes: Sequence[str] = ()

    def __init__(self, scenario: Scenario, system: AssistSystem, alone: InMemory, longest: Turn) -> None:
        self._alone, self._system, self._link = alone, system, scenario.link
        self.leaves, self.flash_bytes = alone.leaves, alone.flash_bytes
        self.file_bytes, self.memory_bytes = alone.file_bytes, alone.memory_bytes
        self._roles = Roles(_as_assisted(scenario, longest), system, _OfTurns)
        self._cloud: Cloud | None = None

    @property
    def machines(self) -> tuple[str, ...]:
        """Returns the instances of the cloud."""
        return (*self._roles.prefilling, *self._roles.decoding)

    def plan_of(self, ask: Ask) -> None:
        """All of it is in memory."""

    def run(self, world: World, ask: Ask, answered: Answered) -> Process:
        story = self._story(ask, world.machine.env.now)
        if not story.tokens:
            yield from self._alone.run(world, ask, answered)
            return
        leases = leased(world.machine, self._alone.sizes(ask), f"turn {ask.number + 1}")
        if self._cloud is None:
            self._cloud = self._roles.cloud(world.machines, Served(goes_on=True))
        serve(self._cloud, world.machine, story)
        request = self._roles.request(world.machine, story)
        request.own.kernel = self._alone.kernel
        yield from helped(request)
        answered.token_times_s += story.shown_s.tolist()
        answered.came, answered.attention = story.came, attends_to_all(ask)
        for lease in leases:
            lease.release()

    def _story(self, ask: Ask, now_s: float) -> Story:
        behind, new = Behind(here=ask.known, there=ask.there), ask.prompt - ask.known
        story = Story(
            request=ask.number,
            device=0,
            prompt=new,
            output=ask.output,
            scene=0,
            arrival_s=now_s,
            began_s=now_s,
            behind=behind,
        )
        promise(story, self._roles.estimates.help(new, self._link, self._system.assist, behind))
        if story.tokens and not story.planned:
            # The device needs the KV of the turn. All tokens come from the cloud, and it takes them in as well.
            story.planned = story.tokens
        return story


def _as_assisted(scenario: Scenario, longest: Turn) -> Scenario:
    """Returns the scenario of a session with requests like its longest turn as its workload. The length stands for the
    time per token that a cloud with many of them keeps."""
    prompt = min(max(2, longest.prompt), MOST_ASSISTED_TOKENS)
    asked = AssistSpec(kind="assist", prompt=prompt, output=longest.output, resident=True, least_ratio=1)
    budget = AssistBudget(memory_bytes=scenario.session.budget.memory_bytes)
    return scenario.model_copy(update={"workload": asked, "budget": budget, "live": AssistLive(), "policies": {}})
