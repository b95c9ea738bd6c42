"""Decoding a real model with its KV in a real file, under the unchanged pipeline."""

from pathlib import Path
from typing import Any

import pytest
from decoding import roles_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_decoding import SmallDecoding, exact_logits
from tiny import LIVE_DECODING, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.roles import Roles
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def scenario(**changes: Any) -> Scenario:
    described = dict(LIVE_DECODING)
    if changes.get("system", "kvswap") != "kvswap":
        del described["policies"]
    return tiny(described, **changes)


class Decoding(SmallDecoding):
    """All KV that was ever computed is kept, to compare with."""

    def __init__(self, model: Any, folder: Path, roles: Roles, **sizes: Any) -> None:
        super().__init__(model, folder, roles, **sizes)
        # [layer][token] -> keys and values [2, sequences, KV heads, head_dim], as they were computed.
        self.computed: list[list[Any]] = [[] for _ in range(self.plan.model.layers)]
        really = self.runner.decoder.keys_values

        def noted(layer: int, hidden: Any, rotary: Any) -> Any:
            both = really(layer, hidden, rotary)
            self.computed[layer] += torch.stack(both).unbind(3)
            return both

        self.runner.decoder.keys_values = noted

    def after_each_token(self, tokens: int) -> None:
        if tokens > 1:
            self.check_slots()

    def unit(self, layer: int, row: int, unit: int) -> Any:
        """What must be in a slot: [2, heads of a row, tokens, head_dim]."""
        sequence, head = divmod(row, self.plan.choice.heads)
        heads = 2 // self.plan.choice.heads
        group = self.plan.choice.group_tokens
        tokens = torch.stack(self.computed[layer][unit * group : (unit + 1) * group], dim=3)
        return tokens[:, sequence, head * heads : (head + 1) * heads]

    def check_slots(self) -> int:
        checked = 0
        for layer, buffer in enumerate(one.resident for one in self.flow.now.layers):
            buffer.check()
            if not isinstance(buffer, ReuseBuffer):
                continue
            held = self.runner.blocks._slots[layer].unflatten(0, (buffer.rows, -1))
            for row in range(buffer.rows):
                for slot in range(buffer.slots):
                    if (unit := buffer.block_in(row, slot)) is not None:
                        assert torch.equal(held[row, slot], self.unit(layer, row, unit))
                        checked += 1
        return checked


POLICY = roles_of("kvswap", group_tokens=4, selected_tokens=1000, compression=4)
WAYS = [
    POLICY,
    roles_of("kvswap", group_tokens=4, selected_tokens=1000, compression=4, reuse=False),
    roles_of("kvswap", group_tokens=4, selected_tokens=1000, compression=4, reuse=False, ahead=False),
    roles_of("kvswap", group_tokens=4, selected_tokens=1000, compression=4, per_head=True),
    roles_of("kvswap", group_tokens=32, selected_tokens=1000, compression=4),
    roles_of("kvswap", group_tokens=1, selected_tokens=1000, compression=4),
    roles_of("flexgen", group_tokens=4),
    roles_of("flexgen", group_tokens=4, ahead=False),
    roles_of("quest", selected_tokens=1000),
]


@pytest.mark.parametrize("roles", WAYS, ids=range(len(WAYS)))
@pytest.mark.parametrize(("context", "batch"), [(150, 2), (64, 1)])
def test_all_groups_are_full_attention(model: Any, tmp_path: Path, roles: Roles, context: int, batch: int) -> None:
    """Groups that were written while decoding are found again, those that are not complete are in memory."""
    decoding = Decoding(model, tmp_path, roles, context=context, batch=batch)
    answers = decoding.run()
    exact = exact_logits(model, decoding.ids, answers)
    assert torch.stack(decoding.logits) == pytest.approx(exact, abs=1e-4 * float(exact.std()))
    assert answers == exact.argmax(-1).T.tolist()


def test_without_the_rolling_buffer_the_newest_tokens_are_missed(model: Any, tmp_path: Path) -> None:
    roles = roles_of("kvswap", group_tokens=4, selected_tokens=1000, compression=4, rolling=False)
    decoding = Decoding(model, tmp_path, roles, context=64)
    exact = exact_logits(model, decoding.ids, decoding.run())
    off = (torch.stack(decoding.logits) - exact).abs().amax((1, 2)) / exact.std()
    # The first two tokens have nothing recent behind them.
    assert off[:2].max() < 1e-4
    assert off[2:5].min() > 1e-2


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    group=st.sampled_from([1, 2, 4, 8]),
    context=st.integers(16, 70),
    batch=st.integers(1, 2),
    selected=st.integers(2, 24),
    spare=st.integers(0, 9),
    per_head=st.booleans(),
    ahead=st.booleans(),
)
def test_slots_hold_what_the_table_says(
    model: Any,
    tmp_path: Path,
    group: int,
    context: int,
    batch: int,
    selected: int,
    spare: int,
    per_head: bool,
    ahead: bool,
) -> None:
    """After every token, each slot of every layer has the very tensors of its unit, wherever they came from."""
    roles = roles_of(
        "kvswap",
        group_tokens=group,
        selected_tokens=selected,
        slots=-(-selected // group) + spare,
        compression=4,
        per_head=per_head,
        ahead=ahead,
    )
    decoding = Decoding(model, tmp_path, roles, context=context, batch=batch, output=2 + group)
    decoding.run()
    assert decoding.check_slots() >= decoding.plan.model.layers * batch


def test_all_of_the_rank_predicts_exactly(model: Any, tmp_path: Path) -> None:
    """Nothing compressed and no reading ahead: the best groups by true scores, summed over heads, are chosen."""
    roles = roles_of("kvswap", group_tokens=4, selected_tokens=16, compression=1, ahead=False)
    decoding = Decoding(model, tmp_path, roles, context=80, output=2)
    queries: list[Any] = []
    really = decoding.runner.decoder.queries
    decoding.runner.decoder.queries = lambda *given: queries.append(really(*given)) or queries[-1]  # type: ignore
    decoding.run()
    for layer, chosen in enumerate(decoding.runner.chosen):
        keys = torch.stack(decoding.computed[layer][:80], dim=3)[0, 0]
        # Three of prefill; then one to select and one to attend with, in each layer.
        query = queries[3 + 2 * layer][0, :, 0].unflatten(0, (2, 2)).sum(1)
        best = torch.einsum("hd,htd->t", query, keys).unflatten(0, (-1, 4)).amax(1).topk(4).indices
        assert set(chosen.ids.flatten().tolist()) == set(best.tolist())


def test_a_scenario_is_carried_out_and_told() -> None:
    wanted = scenario(workload={"output": 6}, policies={"selected_tokens": 32})
    run = run_scenario(wanted)
    assert run.outcome == "done"
    assert len(run.requests) == 2
    assert {span.label for span in run.spans if span.resource == "storage"} == {"Read", "Write"}
    assert 0 < metrics_for(wanted, run)["reuse_rate"] < 1
    held = run.measured["kv_metadata_bytes"] + run.measured["kv_buffer_bytes"]
    assert 0 < held <= 10 * 2**20
    # Two layers' reads lie in memory at once, at most.
    assert 0 < run.measured["kv_read_bytes"] <= 2 * 65536
    assert [len(answer) for answer in run.measured["answers"].values()] == [6, 6]


@pytest.mark.parametrize("reuse", [True, False])
def test_what_memory_takes_is_within_the_budget(reuse: bool) -> None:
    """As many slots as the budget holds, compressed keys of an output a third as long as the context."""
    policies = {"selected_tokens": 32, "compression": 2, "reuse": reuse} | ({"slots": "all"} if reuse else {})
    wanted = scenario(workload={"output": 50}, policies=policies, budget={"kv": "340 KiB"})
    figures = metrics_for(wanted, run_scenario(wanted))
    # Three layers of two sequences with room for 200 tokens: rank 16 of 4 B.
    assert figures["kv_metadata_bytes"] == 3 * 2 * 200 * 16 * 4
    assert figures["kv_memory_peak_bytes"] == figures["kv_metadata_bytes"] + figures["kv_buffer_bytes"]
    assert figures["kv_memory_peak_bytes"] <= 340 * 1024
    if reuse:
        # One more slot of 1 KiB in every layer and sequence would be too much.
        assert figures["kv_memory_peak_bytes"] > 340 * 1024 - 6 * 1024
        assert figures["reuse_rate"] > 0


def test_larger_blocks_hold_the_same_tokens() -> None:
    device = {"extends": "laptop-cpu", "storage": {"bytes_per_s": "1 GB/s", "block_bytes": "4 KiB"}}
    small = {"workload": {"output": 10}, "policies": {"selected_tokens": 32, "slots": "all"}}
    wanted = [scenario(**small, **changes) for changes in ({}, {"device": device})]
    narrow, wide = map(run_scenario, wanted)
    assert wide.measured["answers"] == narrow.measured["answers"]
    # Groups of 1 KiB are read 4 KiB at a time.
    narrow_bytes, wide_bytes = (
        metrics_for(one, run)["read_bytes"] for one, run in zip(wanted, (narrow, wide), strict=True)
    )
    assert wide_bytes == 4 * narrow_bytes


def test_recorded_selections_make_the_simulator_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "selections.npz"
    small = {"policies": {"selected_tokens": 32, "slots": 12}, "workload": {"batch": 3, "output": 20}}
    wanted = scenario(live={"record_selections": str(path)}, **small)
    live = metrics_for(wanted, run_scenario(wanted))
    small["workload"] |= {"selections": str(path)}
    wanted = scenario(backend="sim", **small)
    simulated = metrics_for(wanted, run_scenario(wanted))
    for figure in ("reuse_rate", "read_bytes", "write_bytes", "tokens_decoded"):
        assert simulated[figure] == live[figure]
    assert simulated["reuse_rate"] > 0


def test_the_file_takes_as_long_as_another_device_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.disk import paced_storage
    from kvferry.machine.ops import Extents
    from kvferry.specs.storage import StorageSpec

    now, slept = [100.0], []

    def sleep(s: float) -> None:
        slept.append(s)

    monkeypatch.setattr(paced_storage, "perf_counter", lambda: now[0])
    monkeypatch.setattr(paced_storage, "sleep", sleep)
    like = StorageSpec(bytes_per_s=1e6, latency_s=0.25)
    with paced_storage.PacedStorage.create(tmp_path / "kv.bin", 64 * 4096, like=like) as storage:
        storage.write(Extents((0,), (8192,)), bytes(8192))
        assert slept.pop() == pytest.approx(0.25 + 0.008192)
        # Two of these lie against each other and are one command.
        assert bytes(storage.read(Extents((4096, 8192, 32768), (4096, 4096, 4096)))) == bytes(3 * 4096)
        assert slept.pop() == pytest.approx(2 * 0.25 + 0.012288)
        storage.read(Extents((), ()))
        assert (storage.batches, storage.late, slept) == (2, 0, [])
        # Blocks of 512 B: the two that are written in part are read first, then written, each time as one command.
        storage.write(Extents((4000,), (200,)), bytes(200))
        assert slept.pop() == pytest.approx(0.25 + 0.001024 + 0.25 + 0.001024)
        first = storage.read_first(Extents((4000,), (200,)))
        assert first is not None and list(first) == [(3584, 512), (4096, 512)]
        assert storage.device_bytes(Extents((4000,), (200,))) == 1024
        storage.write(Extents((4000,), (200,)), bytes(200), parts_read=True)
        assert slept.pop() == pytest.approx(0.25 + 0.001024)
        # One clock tick later than the profile says.
        monkeypatch.setattr(paced_storage, "perf_counter", iter([0.0, 9.0]).__next__)
        storage.read(Extents((0,), (4096,)))
        assert (storage.batches, storage.late, slept) == (5, 1, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": {"group_tokens": 200}}, "a group of 200 tokens is longer than the context of 150"),
        ({"policies": {"group_tokens": 0}}, "policies.group_tokens: 0: must be at least 1"),
        ({"policies": {"selected_tokens": 0}}, "policies.selected_tokens: 0: must be at least 1"),
        ({"policies": {"compression": 0.5}}, "policies.compression: 0.5: must be at least 1"),
        ({"live": {"dtype": "bfloat16"}}, "takes 512 bytes per row, the layout has 1024"),
        (
            {"policies": {"placement": "device"}, "live": {"processor": "xpu:0"}},
            "policies.placement: backend torch keeps KV .* on CPUs and with CUDA alone, not on xpu:0; say host or",
        ),
        ({"load": {"share": 0.5}}, "leave load out"),
        ({"live": {"kv_folder": "/nonexistent"}}, "live.kv_folder: /nonexistent: no file can be made there"),
        (
            {"budget": {"kv": "1 KiB"}},
            "budget.kv: 512 B per sequence hold no selection of 37 groups of 4 tokens; .* would",
        ),
        ({"policies": {"scores": "sum"}}, "policies.scores: 'sum' is none of summed, by_head, best_head"),
        ({"live": {"scores": "by_head"}}, "live.scores: is a policy now: say policies.scores"),
    ],
)
def test_what_cannot_be_had_is_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_scenario(scenario(**changes))


def test_an_index_that_is_missing_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.decoding.indexes.table import INDEXES

    monkeypatch.delitem(INDEXES, "low-rank-keys")
    # Nothing is loaded for it.
    monkeypatch.setattr("kvferry.backends.live.decoding.parts.warm_model", None)
    with pytest.raises(InputError, match="policies.selector: backend torch: unknown index 'low-rank-keys'"):
        run_scenario(scenario())


def test_ops_out_of_turn_are_refused(model: Any, tmp_path: Path) -> None:
    from kvferry.machine.handles import Attended
    from kvferry.machine.ops import DecodeStep, FeedForward, OutputHead, PrefillLayer, Select

    decoding = Decoding(model, tmp_path, POLICY, context=16)
    run = decoding.runner.run
    for op, message in (
        (PrefillLayer(1, 16, 1), "layer 1: the hidden state stands below 0"),
        (PrefillLayer(2, 16, 0), "batch of 2"),
        (FeedForward(1, 0), "has not attended"),
        (OutputHead(1), "passed 0 of 3 layers"),
        (Select(1, 4, 4, 0, 0), "4 groups are to be selected, 0 are on storage"),
    ):
        with pytest.raises(KvferryError, match=message):
            run(op, None)
    with pytest.raises(InputError, match="DecodeStep is no op"):
        run(DecodeStep(1, 16), None)
    assert Attended(0, None, None, 0).recent == 0
    decoding.storage.close()
    decoding.machine.close()
