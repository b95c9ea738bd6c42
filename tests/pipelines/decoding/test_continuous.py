"""Requests that come and go while others decode: by hand, by theory, and as scenarios ask for them."""

from typing import Any

import numpy as np
import pytest
from fake_machine import FakeMachine
from tiny import DECODING, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.ops import DecodeStep, Op, PrefillLayer
from kvferry.pipelines.decoding.continuous import ContinuousDecode
from kvferry.pipelines.decoding.passes import Passes
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.batcher import Batcher, Batching, Continuous, LockStep
from kvferry.scenarios.loader import load_model
from kvferry.specs.errors import InputError
from kvferry.traces.request import Request

THREE = (Request(0.0, 4, 3), Request(0.0, 5, 2), Request(1.0, 4, 2))
PAGE_BYTES = 16 * load_model("tiny").kv_bytes_per_token


class Noting(FakeMachine):
    """Keeps the ops that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []

    def submit(self, op: Op, **settings: Any) -> Any:
        self.ops.append(op)
        return super().submit(op, **settings)


def served(requests: tuple[Request, ...], batcher: Batcher) -> ContinuousDecode:
    """On two layers; every op takes a second."""
    machine = Noting()
    decode = ContinuousDecode(machine, Passes(machine, 2), requests, batcher, page_bytes=10.0)
    decode.machine.env.run(until=decode.machine.env.process(decode.run()))
    return decode


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        # A prefill takes two layers of each length and the head, a step one op. The third waits for the second's slot.
        (Continuous(), [[5.0, 6.0, 10.0], [5.0, 6.0], [9.0, 10.0]]),
        (LockStep(), [[5.0, 6.0, 7.0], [5.0, 6.0], [10.0, 11.0]]),
    ],
)
def test_three_requests_and_two_slots_by_hand(batching: Batching, expected: list[list[float]]) -> None:
    decode = served(THREE, Batcher(100, 2, batching))
    assert decode.token_times_s == expected
    assert {step_s for _, step_s in decode.steps} == {1.0}


def test_steps_attend_each_context_and_released_sequences_are_named() -> None:
    ops = served(THREE, Batcher(100, 2)).machine.ops  # type: ignore[attr-defined]
    steps = [op for op in ops if isinstance(op, DecodeStep)]
    assert [(op.batch, op.context_tokens) for op in steps] == [(2, 5.5), (2, 5.5)]
    prefills = [op for op in ops if isinstance(op, PrefillLayer)]
    assert [(op.tokens, op.layer, op.of.released) for op in prefills[-2:]] == [(4, 0, (1,)), (4, 1, ())]


def test_a_preempted_request_keeps_what_it_has_said() -> None:
    # Three pages. At 6 the first needs the second one's page: that is prefilled again when the first has ended, with
    # its 16 + 2 tokens, and says its third.
    decode = served((Request(0.0, 15, 4), Request(0.0, 16, 3)), Batcher(3, 2))
    assert decode.token_times_s == [[5.0, 6.0, 7.0, 8.0], [5.0, 6.0, 11.0]]
    assert decode.machine.memory.peak_of("kv") == 3 * 10
    assert decode.machine.memory.used_bytes == 0
    assert [op.tokens for op in decode.machine.ops if isinstance(op, PrefillLayer)][-1] == 18  # type: ignore[attr-defined]


def test_prompts_that_are_prefilled_one_by_one_wait_less_by_hand() -> None:
    decode = served((Request(0.0, 4, 2), Request(0.0, 4, 2)), Batcher(100, 2, Continuous(prefill_tokens=1)))
    assert decode.token_times_s == [[3.0, 7.0], [6.0, 7.0]]
    decode = served((Request(0.0, 4, 2), Request(0.0, 4, 2)), Batcher(100, 2))
    assert decode.token_times_s == [[3.0, 4.0], [3.0, 4.0]]


def test_one_slot_is_a_queue_of_known_mean_wait() -> None:
    """Poisson arrivals, one server, equal service (M/D/1): the mean wait is service x load / (2 (1 - load))."""
    random, service_s, load = np.random.default_rng(5), 3.0 + 4.0, 0.6
    arrivals_s = np.cumsum(random.exponential(service_s / load, 3000))
    requests = tuple(Request(arrival_s, 4, 5) for arrival_s in arrivals_s.tolist())
    decode = served(requests, Batcher(1, 1))
    waits_s = np.array([times_s[0] - 3.0 for times_s in decode.token_times_s]) - arrivals_s
    assert waits_s.mean() == pytest.approx(service_s * load / (2 * (1 - load)), rel=0.1)


def test_equal_requests_that_fit_together_are_one_batch_in_lock_step() -> None:
    figures = []
    for batching in ("continuous", "lock-step"):
        wanted = tiny(DECODING, system="vllm", policies={"batching": batching}, budget={"kv_share": None})
        figures.append(metrics_for(wanted, run_scenario(wanted)))
    assert figures[0] == figures[1]
    assert figures[0]["batch"] == 2


def test_requests_come_over_time_and_wait_for_memory() -> None:
    workload = {"requests": 12, "batch": 8, "arrivals": {"every": "50 us"}, "spread": 0.5, "context": 200}
    budget = {"kv_share": None, "in_memory_kv": f"{60 * PAGE_BYTES} B"}
    wanted = tiny(DECODING, system="vllm", workload=workload, budget=budget, measure="end_to_end")
    run = run_scenario(wanted)
    figures = metrics_for(wanted, run)
    tokens = sum(len(record.token_times_s) for record in run.requests)
    assert [record.arrival_s for record in run.requests] == pytest.approx([n * 50e-6 for n in range(12)])
    assert len({len(record.token_times_s) for record in run.requests}) > 3
    assert figures["requests_finished"] == 12
    assert figures["tokens_decoded"] == tokens / 12
    assert figures["throughput_tokens_per_s"] == pytest.approx(tokens / run.duration_s)
    assert 1 < figures["batch"] < 8
    assert figures["ttft_p95_s"] > figures["ttft_p50_s"]
    assert 50 * PAGE_BYTES < run.kv_memory_peak_bytes <= 60 * PAGE_BYTES
    # The same requests again, whatever else happens.
    again = run_scenario(wanted)
    assert again.requests == run.requests


def test_a_pool_that_is_too_small_preempts_and_all_are_served() -> None:
    workload = {"requests": 6, "batch": 6, "context": 60, "output": 60}
    budget = {"kv_share": None, "in_memory_kv": f"{12 * PAGE_BYTES} B"}
    wanted = tiny(DECODING, system="vllm", workload=workload, budget=budget)
    run = run_scenario(wanted)
    assert metrics_for(wanted, run)["preemptions"] > 0
    assert [len(record.token_times_s) for record in run.requests] == [60] * 6


def test_fewer_prompts_at_a_time_are_answered_sooner() -> None:
    waits_s = []
    for prefill_tokens in ("1Ki tokens", None):
        policies = {"prefill_tokens": prefill_tokens}
        wanted = tiny(DECODING, system="vllm", policies=policies, workload={"batch": 8}, budget={"kv_share": None})
        waits_s.append(metrics_for(wanted, run_scenario(wanted))["ttft_s"])
    assert waits_s[0] == pytest.approx(waits_s[1] * 4.5 / 8, rel=0.05)
    with pytest.raises(InputError, match=r"policies.prefill_tokens: 0: must be at least 1"):
        run_scenario(tiny(DECODING, system="vllm", policies={"prefill_tokens": 0}))


def test_a_later_request_waits_without_one_to_serve() -> None:
    wanted = tiny(DECODING, system="vllm", workload={"arrivals": {"every": "1000 s"}}, budget={"kv_share": None})
    first, second = run_scenario(wanted).requests
    assert first.token_times_s[-1] < 1000
    assert second.first_token_s is not None
    assert second.first_token_s - 1000 == pytest.approx(first.first_token_s or 0.0)


def test_lengths_of_each_request() -> None:
    lengths = [{"context": 100, "output": 3}, {"output": 2}, {}]
    wanted = tiny(DECODING, system="vllm", workload={"lengths": lengths}, budget={"kv_share": None})
    assert [len(record.token_times_s) for record in run_scenario(wanted).requests] == [3, 2, 12]


def test_memory_too_small_for_the_longest_request_is_an_outcome() -> None:
    lengths = [{"context": 100}, {"context": 10_000}]
    budget = {"kv_share": None, "in_memory_kv": f"{60 * PAGE_BYTES} B"}
    run = run_scenario(tiny(DECODING, system="vllm", workload={"lengths": lengths}, budget=budget))
    assert (run.outcome, run.requests) == ("out_of_memory", ())
    assert run.why.startswith("the KV of the longest sequence takes")


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"requests": 4}, "workload.requests: kvswap decodes one batch of equal prompts in lock step"),
        ({"arrivals": {"every": "1 s"}}, "workload.arrivals: kvswap decodes one batch"),
        ({"spread": 0.5}, "workload.spread: kvswap decodes one batch"),
        ({"lengths": [{"context": 5}]}, "workload.lengths: kvswap decodes one batch"),
    ],
)
def test_lock_step_systems_refuse_requests_that_come_and_go(workload: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_scenario(tiny(DECODING, workload=workload))


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"lengths": [{}], "spread": 0.1}, "workload.spread: lengths says it for 1 requests; leave one of the two out"),
        ({"lengths": [{}], "requests": 1}, "workload.requests: lengths says it"),
        ({"requests": 10_000, "output": 500}, "workload.requests: ask for 5,000,000 tokens; at most 2,000,000 will do"),
        ({"lengths": [{"output": 1_000_000}] * 3}, "workload.lengths: ask for 3,000,000 tokens"),
        ({"requests": 10_001}, "workload.requests: .*at most 10,000"),
    ],
)
def test_work_is_bounded_before_it_starts(workload: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny(DECODING, system="vllm", workload=workload)
