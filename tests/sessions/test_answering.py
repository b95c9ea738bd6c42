"""What a decode stage of a turn holds, reads and reports, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import simpy
from tiny import tiny

from kvferry.machine.memory import BudgetedPool
from kvferry.machine.ops import OutputHead, PrefillLayer
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.attention_kernel import FLASH
from kvferry.policies.decode.spans import Spans
from kvferry.sessions import answering
from kvferry.sessions.answering import (
    Answered,
    Ask,
    InBlocks,
    InMemory,
    Sampling,
    _Outline,
    answer_stage,
    leased,
    read_prompt,
)
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.scenario import Scenario
from kvferry.traces.turn import Turn

# A token's KV is 512 B: 4 layers, 2 heads, 32 B of keys and as many of values.
TOKEN_BYTES = 512
SESSION: dict[str, Any] = {
    "name": "by-hand",
    "system": "on-flash",
    "device": {"extends": "tiny", "storage": {"bytes_per_s": "512 kB/s", "latency_s": "0 s", "block_bytes": "4096 B"}},
    "model": "tiny",
    "link": {"rate": "1 MB/s"},
    "workload": {"kind": "session", "turns": 2, "context": 1000, "question": 100, "output": 11, "in_cloud": "nothing"},
}
TURN = Turn(conversation=0, number=0, prompt=1100, output=11, blocks=(), leaves=())


def scenario(*overrides: str, **changes: Any) -> Scenario:
    return tiny(SESSION, *overrides, **changes)


def in_memory(of: Scenario) -> InMemory:
    return InMemory(of, "vllm", DECODE_SYSTEMS["vllm"].roles)


def test_copies_that_stay_in_memory_are_not_taken_twice() -> None:
    stage, bare = in_memory(scenario()), Ask(number=0, prompt=1000, output=24, known=0)
    held = stage.sizes(bare)
    assert held["kv"] == 1024 * TOKEN_BYTES
    near = stage.sizes(Ask(number=0, prompt=1000, output=24, known=600, near=Spans.first(600)))
    assert near == held | {"kv": 424 * TOKEN_BYTES}
    # More than a turn needs may lie there.
    assert stage.sizes(Ask(number=0, prompt=1000, output=24, known=999, near=Spans.first(5000)))["kv"] == 0
    assert stage.memory_bytes(bare) == sum(held.values()) > held["kv"]
    assert stage.file_bytes(bare) == 0


def test_kv_on_flash_takes_whole_blocks() -> None:
    stage = in_memory(scenario())
    # Eight tokens are 4,096 bytes.
    assert [stage.flash_bytes(tokens) for tokens in (0, 1, 8, 9)] == [0, 4096, 4096, 8192]
    without = in_memory(scenario(device="tiny", system="in-memory"))
    assert without.flash_bytes(9) == 9 * TOKEN_BYTES


def test_a_prompt_is_read_layer_by_layer_behind_what_is_known() -> None:
    said: list[tuple[Any, tuple[Any, ...], int]] = []

    def submit(op: Any, after: tuple[Any, ...], request: int) -> int:
        said.append((op, after, request))
        return len(said)

    model = scenario().model
    assert read_prompt(SimpleNamespace(submit=submit), model, FLASH, 100, 700, 3, after=(0,)) == 5  # type: ignore[arg-type]
    layers = [PrefillLayer(1, 100, layer, kernel=FLASH, context_tokens=700) for layer in range(4)]
    assert said == [(op, (n,), 3) for n, op in enumerate([*layers, OutputHead(1)])]


def test_a_turn_that_does_not_fit_gives_back_what_it_had() -> None:
    machine: Any = SimpleNamespace(memory=BudgetedPool(1000))
    with pytest.raises(
        OutOfMemory, match=r"turn 7: logits needs 201 B, 100 B are free: 101 B \(101 bytes\) are missing"
    ):
        leased(machine, {"kv": 600, "activations": 300, "logits": 201}, "turn 7")
    assert machine.memory.used_bytes == 0
    assert [one.n_bytes for one in leased(machine, {"kv": 600, "logits": 400}, "turn 8")] == [600, 400]


class Shortcuts:
    """Lets time go on, and counts what is noted."""

    may_skip = True

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self.noted_s, self.skipped_s = env, list[float](), list[float]()

    def note(self) -> None:
        self.noted_s.append(self._env.now)

    def go_on(self, seconds: float) -> simpy.Event:
        self.skipped_s.append(seconds)
        return self._env.timeout(seconds)


def outlined(output: int, decoded: int | None, times_s: list[float]) -> tuple[list[float], Shortcuts]:
    env = simpy.Environment()
    shortcuts, answered = Shortcuts(env), Answered()
    world: Any = SimpleNamespace(machine=SimpleNamespace(env=env), shortcuts=shortcuts)
    outline = _Outline(world, Sampling(output, decoded), answered)

    def flow() -> Any:
        for time_s in times_s:
            yield env.timeout(time_s - env.now)
            outline.on_token()
        yield from outline.rest()

    env.run(until=env.process(flow()))
    return answered.token_times_s, shortcuts


def test_tokens_that_are_skipped_come_at_the_pace_of_the_second_half() -> None:
    # Of five the second half begins with the third, at 3 s: two further ones in 7 s. Five are left.
    times_s, shortcuts = outlined(10, 5, [0.0, 1.0, 3.0, 6.0, 10.0])
    assert times_s == [0.0, 1.0, 3.0, 6.0, 10.0, 13.5, 17.0, 20.5, 24.0, 27.5]
    assert (shortcuts.noted_s, shortcuts.skipped_s) == ([3.0], [17.5])


@pytest.mark.parametrize(("output", "decoded"), [(5, None), (5, 5), (5, 9), (1, 2)])
def test_nothing_is_noted_where_all_tokens_are_decoded(output: int, decoded: int | None) -> None:
    came_s = [float(n) for n in range(output)]
    times_s, shortcuts = outlined(output, decoded, came_s)
    assert times_s == came_s
    assert shortcuts.noted_s == shortcuts.skipped_s == []


def test_decoded_tokens_lie_in_the_middle_of_an_answer() -> None:
    # Of 100 steps 4: 50 - 3 + 0.04 are skipped before them.
    sampling = Sampling(101, 5)
    assert (sampling.steps, sampling.skipped) == (5, 47)
    # Of 101, 47.54.
    assert Sampling(102, 5).skipped == 48
    assert (Sampling(101, None).steps, Sampling(101, None).skipped) == (101, 0)
    assert Sampling(1, 5).steps == 1


def test_none_is_skipped_where_the_world_does_not_skip() -> None:
    of = scenario("workload.decoded=5")
    ask = Ask(number=0, prompt=1000, output=11, known=0)
    for skips, decoded in ((True, 5), (False, None)):
        world: Any = SimpleNamespace(shortcuts=SimpleNamespace(may_skip=skips))
        assert Sampling.of(of, world, ask) == Sampling(11, decoded)


def in_blocks(*overrides: str) -> InBlocks:
    of = scenario("system=kvswap-on-flash", *overrides)
    stage = answer_stage(of, "kvswap", DECODE_SYSTEMS["kvswap"], TURN)
    assert isinstance(stage, InBlocks)
    return stage


def test_what_a_load_has_brought_is_held_until_it_is_written() -> None:
    stage = in_blocks()
    assert stage.works_on == "flash"
    bare = stage.memory_bytes(Ask(number=0, prompt=1100, output=11, known=0))
    assert stage.file_bytes(Ask(number=0, prompt=1100, output=11, known=0)) >= 1100 * TOKEN_BYTES / 2
    # 300 of the 700 known tokens are not on flash.
    loaded = stage.memory_bytes(Ask(number=0, prompt=1100, output=11, known=700, stored=Spans.first(400)))
    assert loaded - bare == pytest.approx(300 * TOKEN_BYTES)
    assert stage.memory_bytes(Ask(number=0, prompt=1100, output=11, known=700, stored=Spans.first(700))) == bare


def test_a_buffer_is_sized_once_for_prompts_of_like_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    really = answering.plan_for

    def plan_for(of: Scenario, system: Any) -> Any:
        planned.append(of.decode.workload.context)
        return really(of, system)

    stage = in_blocks()
    monkeypatch.setattr(answering, "plan_for", plan_for)
    # 1.2 to the power of 38 is 1,020.7: what lies within half a power of it, 931.8 to 1,118.2, is sized as 932 tokens.
    for prompt in (932, 1118, 1119):
        stage.memory_bytes(Ask(number=0, prompt=prompt, output=11, known=0))
    assert planned == [932, 932, 1118, 1119, 1119]


def test_kv_on_flash_in_groups_takes_what_its_groups_take() -> None:
    stage = in_blocks()
    plan = stage._some_plan
    assert (plan.context, plan.most_tokens) == (1100, 1111)
    rows, group = 4 * plan.choice.heads, plan.choice.group_tokens
    assert stage.flash_bytes(100 * group) == 100 * rows * plan.layout.stride_bytes
    # The last plan is kept.
    assert stage._some_plan is plan


@pytest.mark.parametrize("system", ["on-flash", "kvswap-on-flash"])
@pytest.mark.parametrize("decoded", ["null", "4"])
def test_every_token_of_an_answer_comes_once(system: str, decoded: str) -> None:
    run = run_scenario(scenario(f"system={system}", f"workload.decoded={decoded}"))
    assert run.sessions is not None, run.why
    for request in run.requests:
        times_s = list(request.token_times_s)
        assert len(times_s) == 11 and times_s == sorted(set(times_s))


def test_what_is_decoded_stands_for_all_steps_as_they_grow() -> None:
    whole, outlined = (
        run_scenario(scenario("system=in-memory", "workload.output=401", f"workload.decoded={decoded}"))
        for decoded in ("null", "5")
    )
    lasted_s = [run.requests[0].token_times_s[-1] - run.requests[0].token_times_s[0] for run in (whole, outlined)]
    assert lasted_s[1] == pytest.approx(lasted_s[0], rel=1e-5)
