"""A cloud that says whatever it likes: the device's answer is there, whole and in its time, whatever was said."""

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, get_args

import pytest

pytest.importorskip("torch")
from damage import damaged
from deadline import deadline
from hostile_assist import HostileCloud, Voice
from odd_values import ODD, odd
from seeds import blocks, check_each

from kvferry.api.scenario import load
from kvferry.backends.live.assist import parts
from kvferry.backends.live.wire.event import as_sent, written
from kvferry.pipelines.run import run_scenario
from kvferry.policies.assist.assistance import MaskComes
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

pytestmark = pytest.mark.torch
HERE = "tests/fuzz/test_hostile_answers.py"
OUTPUT, PATIENCE_S = 6, 0.3
# What the device takes by itself is far below a second; the machine may be busy with other tests.
ALLOWED_S = PATIENCE_S + 12
SYSTEMS = ("pd-device", "cloud-only", "tokens-only", "refinement-only", "speculative-edge")
SMALL = ("prompt=64", "beginning=8", "question=8", f"output={OUTPUT}")


@pytest.fixture(autouse=True, scope="module")
def one_model() -> Iterator[None]:
    """It is loaded once and stays warm."""
    found = parts.warm_model(load_scenario("pd_device/live"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "warm_model", lambda scenario: found)
        patch.setattr(parts.PromptParts, "_rehearse", lambda self: None)
        yield


@cache
def asked(system: str, mask: str) -> Scenario:
    """What is asked of a cloud at some URL."""
    settings = [f"workload.{one}" for one in SMALL]
    settings += [f"system_policies.{system}.assist.patience={PATIENCE_S} s", "machines.cloud.model=byte-small"]
    if system not in ("cloud-only", "speculative-edge"):
        settings.append(f"system_policies.{system}.assist.mask={mask}")
    return load("pd_device/live", [*settings, "live.cloud=http://localhost:1"], system=system)


def way(chance: Random) -> Callable[[Voice, dict[str, Any]], None]:
    """Some of what a cloud can say, in some order."""

    def said(voice: Voice, asked: dict[str, Any]) -> None:
        for _ in range(chance.choice((1, 2, 4))):
            good = {"request": asked["request"], "tokens": asked["tokens"], "bytes": 100.0, "token": (65, "A")}
            good |= {"mask": None, "tokenizer": "bytes", "tpot_s": 0.01}
            mask = {"request": asked["request"], "mask": chance.choice((None, "", "AAAA")), "bytes": 100.0}
            verdict = {"request": asked["request"], "stands": 1, "said": [(66, "B")]}
            how = chance.randrange(9)
            if how < 2:
                _say(voice, "message", odd(chance, good))
            elif how == 2:
                voice.answer(asked)
                for _ in range(chance.randint(0, 9)):
                    _say(voice, "part", odd(chance, (66, "B")) if chance.random() < 0.3 else (66, "B"))
                if chance.random() < 0.5:
                    voice.end()
            elif how == 3:
                _say(voice, "message", odd(chance, verdict))
            elif how == 4:
                _say(voice, chance.choice(("part", "end", "goodbye", "message")), chance.choice(ODD))
            elif how == 5:
                voice._write(damaged(chance, as_sent("message", written(good, 1.0))))
            elif how == 6:
                voice.answer(asked)
                voice.pause(0.1)
                raise OSError
            else:
                # A mask behind the first token, or in the midst of its stream.
                voice.answer(asked)
                for _ in range(chance.randint(0, 2)):
                    _say(voice, "part", (66, "B"))
                _say(voice, "message", odd(chance, mask) if chance.random() < 0.8 else mask)

    return said


def _say(voice: Voice, kind: str, value: Any) -> None:
    try:
        voice.say(kind, value)
    except (TypeError, ValueError):
        voice.say(kind, "what no message can hold")


@blocks(quick=5, long=2000, size=5)
def test_clouds_that_say_whatever_they_like(seeds: range) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        system = chance.choice(SYSTEMS)
        scenario = asked(system, chance.choice(get_args(MaskComes)))
        with deadline(120), HostileCloud(way(chance)) as cloud:
            scenario = scenario.model_copy(
                update={"live": scenario.live.model_copy(update={"cloud": cloud.url})}  # type: ignore[union-attr]
            )
            try:
                run = run_scenario(scenario)
            except InputError as error:
                return f"{system}: {error}"
            except Exception as error:
                return f"{system}: {type(error).__name__}: {error}"
        (request,) = run.requests
        times_s = list(request.token_times_s)
        if run.outcome != "done" or len(times_s) != OUTPUT or times_s != sorted(times_s):
            return f"{system}: {run.outcome}, tokens at {times_s}"
        if times_s[-1] - request.arrival_s > ALLOWED_S:
            return f"{system}: the answer took {times_s[-1] - request.arrival_s} s"
        return None

    check_each(seeds, f"{HERE}::test_clouds_that_say_whatever_they_like", case)
