"""Weights that lie elsewhere: by hand, by bounds, and as scenarios ask for them."""

from collections.abc import Mapping
from typing import Any

import pytest
from fake_machine import FakeMachine
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.passes import passes_of
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.attention_kernel import PAGED
from kvferry.policies.decode.batcher import Turn
from kvferry.policies.engine_memory import offload_of
from kvferry.policies.offload import Offload
from kvferry.scenarios.loader import load_model, load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.offload import OffloadSpec

MODEL = load_model("llama-3.2-1b").model_copy(update={"layers": 4})
LAYER_BYTES = MODEL.matrices.layer_parameters * MODEL.matrices.layer_bits / 8
TOKEN = Turn("decode", (0,), (100,), ())


def offload(layers: int, to: Any, **more: Any) -> Offload:
    return Offload(OffloadSpec(to=to, layers=layers, **more), MODEL, layers)


def seconds(turn: Turn, away: Offload) -> float:
    """Of a turn whose ops take a second each, and in which a layer's weights come in four."""
    machine = FakeMachine(op_s=1.0, bytes_per_s=LAYER_BYTES / 4, unified=False, capacity_bytes=1e12)
    machine.env.run(until=passes_of(machine, MODEL, PAGED, away).submit(turn))
    return round(machine.env.now, 3)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        # Attention and the rest: two seconds a layer; one for the head.
        (1, 4 * 2 + 1),  # comes within 4 s, while three layers are computed; the last layer is the one
        (2, 8 + 2 + 1),  # layers 1 and 3 come by 4 and 8 s
        # Layers 0, 1 and 3 come by 4, by 8, and, as there is room from 6 s on, by 12 s.
        (3, 12 + 2 + 1),
    ],
)
def test_weights_are_brought_while_layers_compute_by_hand(layers: int, expected: float) -> None:
    assert seconds(TOKEN, offload(layers, "host")) == expected


def test_the_third_layer_away_waits_for_room_by_hand() -> None:
    # 0 and 1 by 4 and 8 s. 2 begins to come when 0 is done with, at 6 s, behind 1: 8 to 12 s; 3 behind 1, which is done
    # with at 10 s: 12 to 16 s.
    assert seconds(TOKEN, offload(4, "host")) == 16 + 2 + 1


def test_the_cpu_computes_its_layers_and_weights_stay_by_hand() -> None:
    # Eight ops in a row on two processors, hidden states that take next to nothing, and the head.
    assert seconds(TOKEN, offload(2, "cpu")) == pytest.approx(8 + 1, abs=0.01)


def test_prompts_wait_for_the_cpus_weights_by_hand() -> None:
    # Layers 0 and 1 come by 4 and 8 s; an op for each layer, and the head. KV of two layers follows behind.
    assert seconds(Turn("prefill", (0,), (100,), ()), offload(2, "cpu")) == 8 + 1 + 2 + 1


@given(st.integers(0, 4), st.sampled_from(["cpu", "host", "storage"]), st.floats(0, 6))
def test_as_few_layers_are_away_as_leave_room(kv_layers: int, to: Any, layers_of_room: float) -> None:
    spec, room_bytes = OffloadSpec(to=to), layers_of_room * LAYER_BYTES

    def needs(one: Offload) -> float:
        return one.near_bytes + kv_layers * 0.1 * LAYER_BYTES * one.kv_layers

    found = Offload.fitting(spec, MODEL, room_bytes, lambda near: kv_layers * 0.1 * LAYER_BYTES * near.layers)
    fewer = [Offload(spec, MODEL, n) for n in range(found.layers)]
    assert all(needs(one) > room_bytes for one in fewer)
    assert needs(found) <= room_bytes or found.layers == found.most
    assert len(found.away) == found.layers == len(set(found.away))
    assert sum(one.n_bytes(0) for one in found.holdings if one.name == "weights") == pytest.approx(MODEL.weight_bytes)


LARGE = {
    "name": "large",
    "system": "vllm",
    "device": "rtx-4060",
    "model": "qwen2.5-14b",
    "precision": {"weights": "q4_k_m"},
    "link": {"rate": "1 Gbit/s"},
    "workload": {"kind": "decode", "context": "1Ki", "output": 4},
    "measure": "decode",
}


def ran(away: Any, **changes: Any) -> Run:
    return run_scenario(load_scenario({**LARGE, "budget": {"offload": away}, **changes}))


def rate(run: Run, **changes: Any) -> float:
    return metrics_for(load_scenario({**LARGE, **changes}), run)["decode_tokens_per_s"]


def test_a_model_that_does_not_fit_runs_with_its_weights_elsewhere() -> None:
    assert ran(None).outcome == "out_of_memory"
    by_place = {to: rate(ran(to)) for to in ("cpu", "host")}
    # The CPU reads its memory faster than weights come over PCIe.
    assert by_place["cpu"] > 2 * by_place["host"]
    few, many = (rate(ran({"to": "cpu", "layers": layers})) for layers in (25, 40))
    assert few > many


def test_a_step_takes_no_less_than_any_of_its_parts() -> None:
    scenario = load_scenario({**LARGE, "budget": {"offload": "cpu"}})
    away = offload_of(scenario)
    assert away is not None
    cpu, gpu = (scenario.device.processors[name] for name in ("cpu", "gpu"))
    whole_s = 1 / rate(run_scenario(scenario))
    cpu_s = away.away_bytes / cpu.bytes_per_s / cpu.efficiency["gemv"]
    gpu_s = (scenario.model.layers - away.layers) * away.layer_bytes / gpu.bytes_per_s / gpu.efficiency["gemv"]
    assert cpu_s + gpu_s < whole_s < 1.25 * (cpu_s + gpu_s)


def test_experts_on_the_cpu_are_read_as_routed() -> None:
    mixture = {**LARGE, "model": "qwen3-30b-a3b"}
    layers, experts = (
        rate(ran({"to": "cpu", "what": what}, model="qwen3-30b-a3b"), model="qwen3-30b-a3b")
        for what in ("layers", "experts")
    )
    assert layers < experts < 4 * layers
    scenario = load_scenario({**mixture, "budget": {"offload": {"to": "cpu", "what": "experts"}}})
    away = offload_of(scenario)
    assert away is not None and away.kv_layers == scenario.model.layers


@pytest.mark.parametrize(
    "settings",
    [
        ["device=rtx-4060", "model=qwen3-32b", "budget.offload=cpu"],
        ["device=rtx-2060", "model=qwen3-14b", "budget.offload=host", "workload.output=16"],
    ],
)
def test_as_few_layers_leave_as_let_it_run(settings: list[str]) -> None:
    """Partial results of attention, 4.2 and 2.6 MB, are what one layer less would have no room for."""
    scenario = load_scenario("decode", settings)
    away = offload_of(scenario)
    assert away is not None and run_scenario(scenario).outcome == "done"
    fewer = load_scenario(
        "decode", [*settings[:2], f"budget.offload={{to: {away.spec.to}, layers: {away.layers - 1}}}"]
    )
    assert run_scenario(fewer).outcome == "out_of_memory"


def test_all_weights_stay_where_they_fit() -> None:
    small = {"model": "llama-3.2-1b"}
    assert rate(ran("cpu", **small), **small) == rate(ran(None, **small), **small)


@pytest.mark.parametrize(
    ("away", "changes", "said"),
    [
        ("gpu", {}, "budget.offload.to: 'gpu' is none of cpu, host, storage"),
        ({"to": "cpu", "layers": 48}, {}, "48 are too many; at most 47 would do; processor: cpu has all"),
        ({"to": "cpu", "what": "experts"}, {}, "qwen2.5-14b has no experts; layers would do"),
        ({"to": "host", "what": "experts"}, {"model": "qwen3-30b-a3b"}, "too late to bring them from host"),
        ("storage", {}, "device.storage: is missing, on which weights would lie"),
        ("host", {"device": "jetson-orin-nano-8gb"}, "has one memory for all; storage would do"),
        ("cpu", {"device": "rtx-4060-laptop-specontext"}, "has no processor cpu beside its main one"),
        ("cpu", {"system": "kvswap"}, "keep all KV in memory, and kvswap does not; vllm would do"),
        ("cpu", {"backend": "torch"}, "is modelled alone"),
    ],
)
def test_what_cannot_be_is_refused(away: Any, changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ran(away, **changes)


def test_a_host_without_room_ends_the_run() -> None:
    run = ran("cpu", model="qwen2.5-32b", precision={"weights": "bf16"})
    assert run.outcome == "out_of_memory"
    assert "budget.offload: host: weights needs" in run.why
