"""The session workload: its kind, and the flow of all users' turns through one device."""

from collections.abc import Callable, Iterator, Mapping

import simpy

from kvferry.backends.needs import KvOfTurns, KvOfTurnsInCloud, KvOnStorage, Needs, Prompts
from kvferry.backends.world import NO_INPUTS, Inputs, World
from kvferry.machine.instant import at
from kvferry.pipelines.decoding.runtimes import runtime_spec
from kvferry.pipelines.record import RequestRecord, Sessions, TurnRecord
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Flow, Left, Process, Progress, System
from kvferry.scenarios.resolve import Complaint
from kvferry.sessions.answering import AnswerStage, InMemory, answer_stage, whole_prompt
from kvferry.sessions.as_batch import as_batch
from kvferry.sessions.assisting import Assisted
from kvferry.sessions.device import SessionDevice, Told, pages_of
from kvferry.sessions.faults import session_faults, without_effect
from kvferry.sessions.room import room_for
from kvferry.sessions.systems import SESSION_SYSTEMS, SessionSystem
from kvferry.specs.errors import InputError
from kvferry.specs.link import NoLink
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import MOST_UNITS_PER_REQUEST
from kvferry.traces.resolve import link_trace
from kvferry.traces.turn import Stream
from kvferry.traces.turns import turns_of


class Session:
    """A WorkloadKind."""

    headline = "ttft_s"

    @property
    def systems(self) -> Mapping[str, System]:
        return SESSION_SYSTEMS

    def of_many_machines(self, scenario: Scenario) -> bool:
        return bool(scenario.policy_values.get("assist"))

    def faults(self, scenario: Scenario, system: System) -> Iterator[Complaint]:
        assert isinstance(system, SessionSystem)
        yield from session_faults(scenario, system)

    def medium(self, scenario: Scenario) -> str:
        storage, mbit_per_s = scenario.device.storage, link_trace(scenario.link).mean() * 8 / 1e6
        if isinstance(scenario.link, NoLink):
            return f"storage {storage.name if storage else 'none'}"
        link = f"link {scenario.link.trace or 'constant'} ({mbit_per_s:.0f} Mbit/s)"
        return f"{link}, storage {storage.name if storage else 'none'}"

    def remark(self, scenario: Scenario) -> str | None:
        return None

    def flow(self, scenario: Scenario, system: System, progress: Progress, inputs: Inputs = NO_INPUTS) -> Flow:
        assert isinstance(system, SessionSystem)
        return SessionFlow(scenario, system, progress)


class SessionFlow:
    """A Flow. The device answers one turn at a time; the ones that come meanwhile wait for it."""

    def __init__(self, scenario: Scenario, system: SessionSystem, progress: Progress) -> None:
        self._scenario, self._system, self._progress = scenario, system, progress
        self._turns = turns_of(scenario.session.workload, scenario.seed)
        longest = self._turns.longest
        self._stage: AnswerStage = answer_stage(scenario, system.decode, system.decoding, longest, self._turns.block)
        # Machines beside the device.
        self._cloud: tuple[str, ...] = ()
        if system.assisting is not None:
            assert isinstance(self._stage, InMemory)
            self._stage = assisted = Assisted(scenario, system.assisting, self._stage, longest)
            self._cloud = assisted.machines
        if self._uses_cloud and system.codec is not None:
            _check_units(scenario, max(len(turn.blocks) for turn in self._turns.numbered))
        # Where not even a budget of all memory would do, it says so before anything is run.
        self._stage.memory_bytes(whole_prompt(longest))
        self._room = room_for(scenario, system, self._stage, self._turns)
        self._told: list[Told] = []
        self._device: SessionDevice | None = None

    @property
    def needs(self) -> Needs:
        longest, system = self._turns.longest, self._system
        batch = as_batch(self._scenario, system.decode, longest.prompt, longest.output)
        runtime = runtime_spec(batch, system.decoding)
        cloud = dict.fromkeys(self._cloud, Prompts())
        place_bytes = int(self._stage.flash_bytes(self._turns.block))
        plan = self._stage.plan_of(whole_prompt(longest))
        of_turns = KvOfTurns(
            runtime=runtime,
            turns=self._turns,
            places=self._room.flash,
            helped=bool(self._cloud),
            place_bytes=place_bytes,
            pages=pages_of(longest, self._turns.block) if self._stage.works_on == "flash" else 0,
            decoding=None if plan is None else KvOnStorage(sizes=plan, sequences=1),
        )
        if not self._uses_cloud or system.codec is None:
            return {DEVICE: of_turns, **cloud}
        sends = "cloud" in system.places
        return {DEVICE: KvOfTurnsInCloud(codec=system.codec, sends=sends, **vars(of_turns)), **cloud}

    @property
    def _uses_cloud(self) -> bool:
        """A loader that reads also computes what lies on flash alone, and knows from what is stored how much work that
        is."""
        stored = any(turn.stored for turn in self._turns.numbered)
        return (
            stored or "cloud" in self._system.places or ("flash" in self._system.places and self._system.loading.reads)
        )

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        env, queue = world.machine.env, simpy.Resource(world.machine.env)
        link_bytes_per_s = world.rates.link.mean() if self._uses_cloud else 0.0
        self._device = device = SessionDevice(
            world,
            self._scenario,
            self._system,
            self._stage,
            self._turns,
            self._room,
            link_bytes_per_s,
            self._uses_cloud and self._system.codec is not None,
        )
        first = 0
        users = []
        for stream in self._turns.streams:
            users.append(env.process(self._user(device, queue, stream, first)))
            first += len(stream)
        yield env.all_of(users)
        yield from device.keeping.all_sent()

    def _user(self, device: SessionDevice, queue: simpy.Resource, stream: Stream, first: int) -> Process:
        env = device.machine.env
        answered_s = env.now
        for number, turn in enumerate(stream, first):
            yield at(env, max(answered_s + turn.after_s, turn.due_s or 0.0))
            arrival_s = env.now
            with queue.request() as mine:
                yield mine
                told = yield from device.turn(turn, number, arrival_s)
            answered_s = told.record.end_s
            self._told.append(told)
            self._progress(len(self._told), len(self._turns))

    def left(self, world: World, end: Totals) -> Left:
        told = sorted(self._told, key=lambda one: one.record.request)
        requests = [
            RequestRecord(
                request=one.record.request,
                context_tokens=one.record.prompt,
                conversation=one.record.conversation,
                turn=one.record.number,
                began_s=one.record.began_s,
                arrival_s=one.record.arrival_s,
                first_token_s=one.record.first_token_s,
                token_times_s=one.token_times_s,
            )
            for one in told
        ]
        turns: tuple[TurnRecord, ...] = tuple(one.record for one in told)
        notes = (
            *without_effect(self._scenario, self._system),
            *self._turns.notes,
            *self._stage.notes,
            *(self._device.notes if self._device else ()),
        )
        return Left(requests=requests, sessions=Sessions(turns=turns), notes=notes)

    def kept(self) -> str:
        return f"{len(self._told):,} of {len(self._turns):,} turns"


def _check_units(scenario: Scenario, blocks: int) -> None:
    """A load of all blocks of the longest prompt must stay within what one may have. Raises InputError."""
    model, per_head = scenario.model, scenario.coupling == "per_head"
    units = blocks * model.layers * (model.kv_heads if per_head else 1)
    if units > MOST_UNITS_PER_REQUEST:
        what = f"makes {units:,} units in the longest load (blocks x layers{' x KV heads' if per_head else ''})"
        most = f"at most {MOST_UNITS_PER_REQUEST:,} will do, about a minute of simulation"
        raise InputError(f"workload.block: {what}, {most}; enlarge it, or shorten the context")
