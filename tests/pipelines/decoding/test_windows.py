"""Decoding with layers that attend to a window: memory and times of whole runs, and what is refused."""

from typing import Any

import pytest
from fake_machine import FakeMachine

from kvferry.machine.ops import DecodeAttention, Op, PrefillLayer
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.decoding.passes import passes_of
from kvferry.pipelines.decoding.peak import Peak
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.attention_kernel import PAGED
from kvferry.policies.decode.batcher import Turn
from kvferry.policies.decode.pages import PageSizes
from kvferry.policies.offload import Offload
from kvferry.scenarios.loader import load_model, load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.offload import OffloadSpec
from kvferry.traces.request import Request

# Four layers, of which the last attends to all; a token's KV in a layer takes 128 B.
TINY = load_model("tiny")
OTHERS = {"full_layers": [3]}


class Noting(FakeMachine):
    """Notes what it is asked to compute."""

    def submit(self, op: Op, **settings: Any) -> Ticket:
        self.__dict__.setdefault("ops", []).append(op)
        return super().submit(op, **settings)


def scenario(window: int | None, **changes: Any) -> Any:
    model = TINY.model_dump(exclude_none=True) | ({} if window is None else {"window": window, **OTHERS})
    workload = {"kind": "decode", "context": 1000, "output": 9} | changes.pop("workload", {})
    return load_scenario(
        {
            "name": "windows",
            "system": "vllm",
            "device": "tiny",
            "model": model,
            "link": {"rate": "1 MB/s"},
            "workload": workload,
            **changes,
        },
        check=names_in_use,
    )


def ran(window: int | None, **changes: Any) -> Run:
    run = run_scenario(scenario(window, **changes))
    assert run.outcome == "done", run.why
    return run


def test_pages_hold_the_window_by_hand() -> None:
    # 1,009 tokens take 64 pages of the layer that sees all, 100 take 7 of each of three: of 16 tokens x 128 B.
    pages = PageSizes(scenario(100).model)
    assert (pages.page_bytes, pages.of(1009), pages.of(50)) == (16 * 128, 64 + 3 * 7, 4 * 4)
    # The last token's KV is never made.
    assert dict(ran(100).memory_at_peak)["kv"] == (63 + 3 * 7) * 16 * 128
    assert dict(ran(None).memory_at_peak)["kv"] == 63 * 4 * 16 * 128


def test_more_sequences_fit_where_layers_keep_a_window() -> None:
    room = 10 * 64 * 4 * 16 * 128
    fit = [
        Peak(DECODE_SYSTEMS["vllm"].roles, scenario(window).model).sequences_within(room, Request(0.0, 1000, 9))
        for window in (None, 2000, 100)
    ]
    assert fit == [10, 10, 10 * 64 * 4 // 85]


@pytest.mark.parametrize("away", [{}, {"budget": {"offload": {"to": "storage", "layers": 2}}}])
def test_a_window_that_holds_all_changes_nothing_and_a_shorter_one_is_faster_and_smaller(away: dict[str, Any]) -> None:
    changes = {"device": {"extends": "tiny", "storage": "nvme"}, **away}
    dense, whole, half, short = (ran(window, **changes) for window in (None, 1009, 500, 100))
    for run in (whole, half, short):
        assert len(run.requests[0].token_times_s) == 9
    assert whole.requests[0].token_times_s == pytest.approx(dense.requests[0].token_times_s, rel=1e-12)
    assert whole.memory_peak_bytes == dense.memory_peak_bytes
    assert short.duration_s < half.duration_s < dense.duration_s
    assert short.memory_peak_bytes < half.memory_peak_bytes < dense.memory_peak_bytes


def test_requests_that_come_and_go_give_their_pages_back() -> None:
    workload = {"requests": 12, "arrivals": {"rate": "50 requests/s"}, "spread": 0.5, "batch": 3}
    run = ran(100, workload=workload, budget={"in_memory_kv": f"{3 * 85 * 16 * 128} B"})
    assert len(run.requests) == 12


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"system": "kvswap"}, "kvswap does not model that"),
        ({"system": "full-eager"}, "full-eager does not model that"),
        ({"system": "streaming-llm"}, "streaming-llm does not model that"),
        (
            {"backend": "torch"},
            r"shorter ones \(workload.context\) would do, or --set backend=sim with KV in memory \(--system vllm\)",
        ),
        (
            {"workload": {"kind": "context-reuse", "context": 1000, "output": 9}, "system": "ferry"},
            "context-reuse has none that are longer: .*, or workload.kind decode or session with KV",
        ),
    ],
)
def test_what_does_not_model_a_window_says_what_would_do(changes: dict[str, Any], what: str) -> None:
    device = {"extends": "tiny", "storage": "nvme"}
    with pytest.raises(InputError, match=f"newest 100 tokens alone, and sequences have 1,0.. tokens.*{what}"):
        scenario(100, device=device, **changes)


def test_layers_whose_weights_come_from_elsewhere_attend_to_their_windows_by_hand() -> None:
    model = scenario(100).model
    machine = Noting(unified=False)
    passes = passes_of(machine, model, PAGED, Offload(OffloadSpec(to="storage", layers=1), model, 1))
    passes.submit(Turn("prefill", (0,), (300,), ()))
    passes.submit(Turn("decode", (0, 1), (300, 50), ()))
    prefilled = [op.window_tokens for op in vars(machine)["ops"] if isinstance(op, PrefillLayer)]
    attended = [op.attended_tokens for op in vars(machine)["ops"] if isinstance(op, DecodeAttention)]
    # In the mean of 300 and 50 tokens; within the window 100 and 50.
    assert (prefilled, attended) == ([100, 100, 100, None], [75, 75, 75, 175])


def test_layers_on_the_cpu_are_refused_behind_a_window() -> None:
    budget = {"offload": {"to": "cpu", "layers": 2}}
    with pytest.raises(InputError, match=r"budget.offload.to: layers on the CPU are not modelled behind a window"):
        scenario(100, device="rtx-4060", budget=budget)
    assert scenario(1009, device="rtx-4060", budget=budget).model.window == 1009
