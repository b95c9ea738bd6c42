"""What software takes to manage KV: by hand, scaled between hosts, assumed or known, and what else it might be."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DECODING, changed

from kvferry.analysis.remarks import rests_on
from kvferry.machine.ops import Bookkeep, FeedForward
from kvferry.pipelines.checks import check_names
from kvferry.pipelines.decoding.runtimes import known_runtimes, on_runtime, others, runtime_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import dump_scenario, load_device, load_scenario
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.errors import InputError
from kvferry.specs.runtime import RuntimeSpec
from kvferry.specs.scenario import Scenario

BY_HAND = RuntimeSpec(
    name="by-hand", layer_s=4.0, block_s=2.0, slot_s=0.5, unexplained_score_s=8.0, most_slots=10, storage_slowdown=3.0,
    host_clock_hz=1e9, devices=("here",), sources={},
)  # fmt: skip


# Beside the processor's memory there is the host's.
TWO_MEMORIES = {
    "extends": "rtx-5080-laptop",
    "storage": DECODING["device"]["storage"],
    "memory": {"copy_bytes_per_s": "1 GB/s", "host_capacity_bytes": "1 GB"},
}


def kvswap(**changes: str) -> Scenario:
    return load_scenario("kvswap/throughput", [f"{key.replace('__', '.')}={value}" for key, value in changes.items()])


def runtime(scenario: Scenario) -> Any:
    found = runtime_of(scenario)
    assert found is not None
    return found


def test_times_are_scaled_by_the_clocks_of_both_hosts_by_hand() -> None:
    # A host of 2 GHz needs half the time of one of 1 GHz; a slowdown is a ratio.
    device = load_device("tiny").model_copy(update={"host_clock_hz": 2e9})
    own = BY_HAND.on(device)
    assert (own.layer_s, own.block_s, own.slot_s, own.unexplained_score_s) == (2.0, 1.0, 0.25, 4.0)
    assert own.storage_slowdown == 3.0
    laid = BY_HAND.laid_over(device)
    main = laid.processors[laid.main]
    assert (main.eager_layer_s, main.block_s, main.slot_s, main.unexplained_score_s) == (2.0, 1.0, 0.25, 4.0)
    assert laid.contention is not None
    assert laid.contention.slowdown == {"gpu": {"storage": 3.0}}
    floor = BY_HAND.model_copy(update={"floor_s": 10.0, "kernel_slowdown": 1.5}).laid_over(device)
    main = floor.processors[floor.main]
    assert (main.eager_floor_s, main.eager_slowdown) == (5.0, 1.5)
    there = device.model_copy(update={"name": "here"})
    assert BY_HAND.on(there) == BY_HAND, "as measured where it was measured"
    unknown = device.model_copy(update={"host_clock_hz": None})
    assert BY_HAND.on(unknown) == BY_HAND


def test_a_search_beyond_the_rows_that_it_was_fitted_on_costs_no_more_by_hand() -> None:
    device, model = load_device("tiny"), kvswap().model
    main = BY_HAND.laid_over(device.model_copy(update={"name": "here"})).processors["gpu"]
    costs = Roofline(main, model)
    taken = [costs.cost(Bookkeep(3, slots)).duration_s for slots in (0, 4, 10, 11, 10_000)]
    assert taken == [3 * 2.0, 3 * (2 + 2), 3 * (2 + 5), 3 * (2 + 5), 3 * (2 + 5)]
    plain = Roofline(device.processors["gpu"], model)
    assert costs.cost(FeedForward(1)).duration_s == pytest.approx(plain.cost(FeedForward(1)).duration_s + 4.0)


@pytest.mark.parametrize(
    ("changes", "name", "assumed"),
    [
        # Fitted on the system's own rows on the device.
        ({}, "kvswap-prototype", False),
        ({"system": "flexgen"}, "kvswap-prototype", False),
        # On the device, but no row of the system.
        ({"system": "quest"}, "kvswap-prototype", True),
        # The same board under its other profile, and a phone on which another paper's prototype was fitted.
        ({"device": "jetson-agx-orin-sparkv"}, "kvswap-prototype", True),
        ({"device": "oneplus-12"}, "dynakv-prototype", True),
        ({"device": "oneplus-12", "system": "dynakv"}, "dynakv-prototype", False),
        ({"device": "jetson-agx-orin-sparkv", "system": "dynakv"}, "dynakv-prototype", True),
        # Who names one does not assume it.
        ({"device": "jetson-agx-orin-sparkv", "runtime": "ideal"}, "ideal", False),
    ],
)
def test_which_runtime_and_whether_it_is_assumed(changes: dict[str, str], name: str, assumed: bool) -> None:
    found = runtime(kvswap(**changes))
    assert (found.spec.name, found.assumed) == (name, assumed)
    assert bool(others(kvswap(**changes))) == assumed


@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("system", ["vllm", "full-flashinfer"])
def test_kernels_launched_over_kv_in_memory_take_what_was_fitted_there_whatever_the_paper(
    system: str, attention: str
) -> None:
    settings = [f"system={system}", f"policies.attention={attention}"]
    scenario = load_scenario("decode", ["device=rtx-4060", "model=qwen3-8b", *settings])
    found = runtime(scenario)
    assert (found.spec.name, found.assumed) == ("specontext-prototype", True)
    (remark,) = (line for line in rests_on([scenario]) if "specontext-prototype" in line)
    assert remark.startswith("what software takes to launch layers kernel by kernel is assumed on rtx-4060: ")


def test_another_name_for_the_same_kernel_over_kv_in_memory_takes_the_same_time() -> None:
    def tpot(*settings: str) -> float:
        return 1 / tokens_per_s(load_scenario("decode", ["device=rtx-4060", "model=qwen3-8b", *settings]))

    named = tpot("system=full-flash")
    assert tpot("policies.attention=flash") == pytest.approx(named, rel=0.01)


def test_an_eager_engine_says_itself_what_launches_take() -> None:
    """A layer takes 226 us, whether its attention is captured or launched kernel by kernel: none is added."""
    settings = ["device=rtx-4060", "model=llama-3.2-1b", "engine=hugging-face", "precision.weights=fp16"]
    scenario = load_scenario("decode", [*settings, "system=full-eager"])
    assert runtime_of(scenario) is None and scenario.device.processors["gpu"].layer_s == 226e-6
    assert 1 / tokens_per_s(scenario) > scenario.model.layers * 226e-6 + scenario.model.weight_bytes / 272e9
    # KV on storage is managed by a runtime nonetheless.
    away = kvswap(device="jetson-agx-orin-64gb", engine="hugging-face", precision={"weights": "fp16"})
    assert runtime(away).spec.name == "kvswap-prototype"


def test_a_profile_that_says_what_software_takes_has_no_other_runtime() -> None:
    measured = kvswap(device="jetson-agx-orin-sparkv", device__processors__gpu__eager_layer_s="1 ms")
    assert runtime_of(measured) is None
    assert on_runtime(measured, DECODE_SYSTEMS["kvswap"]) is measured
    assert not others(measured)
    # A whole step that is launched at once, from KV in memory, manages nothing.
    assert runtime_of(kvswap(system="vllm", device="jetson-agx-orin-sparkv")) is None


@pytest.mark.parametrize(
    ("settings", "name", "assumed"),
    [
        (["system=kvswap-on-flash"], "kvswap-prototype", True),
        (["system=kvswap-on-flash", "runtime=ideal"], "ideal", False),
        # Fitted on rows of the system that answers, whatever the session's own is called.
        (["system=kvswap-on-flash", "device=jetson-agx-orin-kvswap"], "kvswap-prototype", False),
        (["policies.decode=full-flash"], "specontext-prototype", True),
        (["policies.decode=vllm"], None, None),
    ],
)
def test_a_session_runs_on_that_of_the_system_that_answers(
    settings: list[str], name: str | None, assumed: bool | None
) -> None:
    scenario = load_scenario("session/day", settings)
    check_names(scenario)
    found = runtime_of(scenario)
    assert (found and found.spec.name, found and found.assumed) == (name, assumed)
    assert [one.runtime.name for one in others(scenario) if one.runtime][:1] == (["ideal"] if assumed else [])


def test_what_it_might_be_are_the_ends_of_what_is_known() -> None:
    """Of the known runtimes, the slowest and the ideal: what lies between them is not run."""
    agx = others(kvswap(device="jetson-agx-orin-sparkv"))
    assert [one.runtime.name for one in agx if one.runtime] == ["ideal"], "its own is the slowest"
    phone = others(kvswap(device="oneplus-12"))
    assert [one.runtime.name for one in phone if one.runtime] == ["kvswap-prototype"], "its own is as the ideal"
    costs = {one.name: one.costs for one in known_runtimes()}
    for cost in costs.values():
        assert all(
            low <= one <= high for low, one, high in zip(costs["ideal"], cost, costs["kvswap-prototype"], strict=True)
        )


def tpot_s(system: str, placement: Any, layer_s: float) -> float:
    """Seconds per token on a runtime that takes this for each layer that is launched kernel by kernel."""
    spec = RuntimeSpec(name="drawn", layer_s=layer_s, sources={})
    policies = {"placement": placement, **({} if system == "vllm" else {"selected_tokens": 80})}
    scenario = load_scenario(changed(DECODING, device=TWO_MEMORIES, system=system, policies=policies, budget={}))
    return 1 / tokens_per_s(scenario.model_copy(update={"runtime": spec}))


@pytest.mark.parametrize(
    ("system", "placement", "launched"),
    [
        # Reads of a layer wait for its choice, and computing for its reads: no graph holds both.
        ("quest", "storage", 1.0),
        # Copies wait for the choice just so.
        ("quest", "host", 1.0),
        # No file is read in a graph, though what is read is known beforehand; copies of all there is are captured.
        ("vllm", "storage", 1.0),
        ("vllm", "host", 0.0),
        # What is chosen before the pass is copied within it.
        ("specontext", "host", 0.0),
        ("specontext", "storage", 1.0),
        ("quest", "device", 0.0),
    ],
)
def test_layers_that_wait_for_the_host_are_launched_by_themselves_by_hand(
    system: str, placement: Any, launched: float
) -> None:
    layers = kvswap(model="tiny").model.layers
    more_s = tpot_s(system, placement, 1.0) - tpot_s(system, placement, 0.0)
    # Reads ahead take no time beside it.
    assert more_s == pytest.approx(launched * layers, rel=0.01, abs=1e-9)


def tokens_per_s(scenario: Scenario) -> float:
    times_s = run_scenario(scenario).requests[0].token_times_s
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


@settings(max_examples=8, deadline=None)
@given(layer=st.floats(0, 1e-3), block=st.floats(0, 1e-5), slot=st.floats(0, 1e-7), slowdown=st.floats(1, 4))
def test_a_dearer_runtime_is_never_faster(layer: float, block: float, slot: float, slowdown: float) -> None:
    device = changed(DECODING["device"], processors={"gpu": dict.fromkeys(("eager_layer_s", "block_s", "slot_s"))})
    plain = load_scenario(
        changed(DECODING, device=device, policies={"group_tokens": 4, "selected_tokens": 80, "slots": 100})
    )

    def rate(share: float) -> float:
        spec = RuntimeSpec(
            name="drawn", layer_s=share * layer, block_s=share * block, slot_s=share * slot,
            storage_slowdown=1 + share * (slowdown - 1), sources={},
        )  # fmt: skip
        return tokens_per_s(plain.model_copy(update={"runtime": spec}))

    rates = [rate(share) for share in (0.0, 0.5, 1.0)]
    assert rates[0] >= rates[1] * (1 - 1e-9) >= rates[2] * (1 - 2e-9)


def test_the_runtime_counts_among_what_a_run_depends_on() -> None:
    named = kvswap(runtime="ideal")
    assert load_scenario(dump_scenario(named)) == named
    own = load_scenario(dump_scenario(kvswap()) | {"runtime": {"extends": "kvswap-prototype", "floor_s": "1 ms"}})
    assert own.runtime is not None
    assert own.runtime.sources["floor_s"] == "given in (mapping)"
    with pytest.raises(InputError, match=r"unknown runtime 'idael'.*ideal"):
        kvswap(runtime="idael")
