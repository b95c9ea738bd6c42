"""Decoding a real model with its KV in a real file, under the unchanged pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import LIVE_DECODING, LIVE_MODEL, tiny

from kvferry.pipelines.decoding.decode import OffloadedDecode
from kvferry.pipelines.decoding.plan import DecodePlan, DecodePolicy, plan_of
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def scenario(**changes: Any) -> Scenario:
    described = dict(LIVE_DECODING)
    if changes.get("system", "kvswap") != "kvswap":
        del described["policies"]
    return tiny(described, **changes)


@pytest.fixture(scope="module")
def model() -> Any:
    """Weights so large that attention has something to choose."""
    from kvferry.backends.live.model.models import random_model

    return random_model("qwen3", ModelSpec.model_validate(LIVE_MODEL), seed=0, spread=0.2)


class Decoding:
    """A pipeline over a runner of the small model, in a folder; all KV that was ever computed, to compare with."""

    def __init__(
        self, model: Any, folder: Path, policy: DecodePolicy, *, context: int, batch: int = 1, output: int = 12
    ) -> None:
        from kvferry.backends.live.decoding.kv_file import UnitFormat
        from kvferry.backends.live.decoding.low_rank import LowRankKeys, low_rank_adapters
        from kvferry.backends.live.decoding.runner import OffloadRunner, source
        from kvferry.backends.live.engine.machine import LiveMachine
        from kvferry.backends.live.storage.direct_storage import Storage

        spec = ModelSpec.model_validate(LIVE_MODEL)
        self.plan: DecodePlan = plan_of(policy, spec, sequences=batch, context=context, output=output, budget_bytes=1e7)
        self.ids = np.random.default_rng(3).integers(0, 256, (batch, context)).tolist()
        layout = self.plan.layout
        units = UnitFormat(layout, group_tokens=self.plan.group_tokens, kv_heads=2, head_dim=16, dtype=torch.float32)
        sample = torch.tensor(np.random.default_rng(4).integers(0, 256, (1, 200)))
        keys = LowRankKeys(
            low_rank_adapters(model, sample, self.plan.rank),
            sequences=batch,
            room=layout.units * self.plan.group_tokens,
            group_tokens=self.plan.group_tokens,
        )
        self.logits: list[Any] = []
        self.runner = OffloadRunner(
            model,
            self.ids,
            units,
            output=output,
            slots=self.plan.slots,
            keys=None if policy.selected_tokens is None else keys,
            listen=self.logits.append,
        )
        self.units = units
        # [layer][token] -> keys and values [2, sequences, KV heads, head_dim], as they were computed.
        self.computed: list[list[Any]] = [[] for _ in range(spec.layers)]
        really = self.runner.decoder.keys_values

        def noted(layer: int, hidden: Any, rotary: Any) -> Any:
            both = really(layer, hidden, rotary)
            self.computed[layer] += torch.stack(both).unbind(3)
            return both

        self.runner.decoder.keys_values = noted  # type: ignore[method-assign]
        self.storage = Storage.create(folder / "kv.bin", layout.file_bytes)
        self.machine = LiveMachine("here", self.runner, capacity_bytes=1e9, storage=self.storage, source=source)
        self.flow = OffloadedDecode(self.machine, self.plan, self._after_each_token)
        self.output = output

    def run(self) -> list[list[int]]:
        with self.storage, self.machine:
            self.machine.env.run(until=self.machine.env.process(self.flow.run(self.output)))
        return self.runner.answers

    def _after_each_token(self, tokens: int) -> None:
        if tokens > 1:
            self.check_slots()

    def unit(self, layer: int, row: int, unit: int) -> Any:
        """What must be in a slot: [2, heads of a row, tokens, head_dim]."""
        sequence, head = divmod(row, self.plan.heads)
        heads = 2 // self.plan.heads
        group = self.plan.group_tokens
        tokens = torch.stack(self.computed[layer][unit * group : (unit + 1) * group], dim=3)
        return tokens[:, sequence, head * heads : (head + 1) * heads]

    def check_slots(self) -> int:
        checked = 0
        for layer, buffer in enumerate(self.flow.buffers or ()):
            buffer.check()
            held = self.runner.slot_units(layer)
            for row in range(buffer.sequences):
                for slot in range(buffer.slots):
                    if (unit := buffer.unit_in(row, slot)) is not None:
                        assert torch.equal(held[row, slot], self.unit(layer, row, unit))
                        checked += 1
        return checked


def exact_logits(model: Any, ids: list[list[int]], answers: list[list[int]]) -> Any:
    """[tokens, sequences, vocabulary]: what the whole model says before each token of the answers."""
    said = torch.tensor([one + answer for one, answer in zip(ids, answers, strict=True)])
    with torch.no_grad():
        logits = model(said).logits
    return logits[:, len(ids[0]) - 1 : -1].transpose(0, 1)


POLICY = DecodePolicy(group_tokens=4, selected_tokens=1000, compression=4)
WAYS = [
    POLICY,
    DecodePolicy(group_tokens=4, selected_tokens=1000, compression=4, reuse=False),
    DecodePolicy(group_tokens=4, selected_tokens=1000, compression=4, reuse=False, ahead=False),
    DecodePolicy(group_tokens=4, selected_tokens=1000, compression=4, per_head=True),
    DecodePolicy(group_tokens=32, selected_tokens=1000, compression=4),
    DecodePolicy(group_tokens=1, selected_tokens=1000, compression=4),
    DecodePolicy(group_tokens=4, selected_tokens=None, reuse=False),
    DecodePolicy(group_tokens=4, selected_tokens=None, reuse=False, ahead=False),
]


@pytest.mark.parametrize("policy", WAYS, ids=range(len(WAYS)))
@pytest.mark.parametrize(("context", "batch"), [(150, 2), (64, 1)])
def test_all_groups_are_full_attention(
    model: Any, tmp_path: Path, policy: DecodePolicy, context: int, batch: int
) -> None:
    """Groups that were written while decoding are found again, those that are not complete are in memory."""
    decoding = Decoding(model, tmp_path, policy, context=context, batch=batch)
    answers = decoding.run()
    exact = exact_logits(model, decoding.ids, answers)
    assert torch.stack(decoding.logits) == pytest.approx(exact, abs=1e-4 * float(exact.std()))
    assert answers == exact.argmax(-1).T.tolist()


def test_without_the_rolling_buffer_the_newest_tokens_are_missed(model: Any, tmp_path: Path) -> None:
    policy = DecodePolicy(group_tokens=4, selected_tokens=1000, compression=4, rolling=False)
    decoding = Decoding(model, tmp_path, policy, context=64)
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
    policy = DecodePolicy(
        group_tokens=group,
        selected_tokens=selected,
        slots=-(-selected // group) + spare,
        compression=4,
        per_head=per_head,
        ahead=ahead,
    )
    decoding = Decoding(model, tmp_path, policy, context=context, batch=batch, output=2 + group)
    decoding.run()
    assert decoding.check_slots() >= decoding.plan.shape.layers * batch


def test_group_scores_by_hand() -> None:
    """Two query heads share one key head of width 2, which an adapter of rank 1 sees the first number of."""
    from kvferry.backends.live.decoding.low_rank import LowRankKeys

    adapters = torch.tensor([[[[1.0], [0.0]]]])
    for by_head in (False, True):
        keys = LowRankKeys(adapters, sequences=1, room=6, group_tokens=2, by_head=by_head)
        keys.append(0, torch.tensor([[[[1.0, 9.0], [-2.0, 0.0], [3.0, 5.0], [-1.0, 0.0]]]]))
        queries = torch.tensor([[[[2.0, 4.0]], [[1.0, 7.0]]]])
        scores = keys.scores(0, queries, heads=1)
        assert scores.shape == (1, 1, 2)
        if not by_head:
            # Summed over heads: 3 x (1, -2, 3, -1); the largest of each group.
            assert scores.flatten().tolist() == [3.0, 9.0]
        else:
            by_token = [(torch.tensor([1.0, -2.0, 3.0, -1.0]) * query * 2**-0.5).softmax(0) for query in (2.0, 1.0)]
            summed = (by_token[0] + by_token[1]).tolist()
            assert scores.flatten().tolist() == pytest.approx([summed[0], summed[2]])


def test_heads_may_choose_for_themselves() -> None:
    from kvferry.backends.live.decoding.low_rank import LowRankKeys

    adapters = torch.eye(2).reshape(1, 2, 1, 2)  # two key heads of width 1, both kept
    keys = LowRankKeys(adapters, sequences=1, room=2, group_tokens=1)
    keys.append(0, torch.tensor([[[[1.0], [2.0]], [[40.0], [3.0]]]]))
    queries = torch.tensor([[[[1.0]], [[10.0]]]])
    assert keys.scores(0, queries, heads=2).tolist() == [[[1.0, 2.0], [400.0, 30.0]]]
    assert keys.scores(0, queries, heads=1).tolist() == [[[401.0, 32.0]]]


def test_adapters_are_the_right_singular_vectors(model: Any) -> None:
    from kvferry.backends.live.decoding.low_rank import low_rank_adapters
    from kvferry.backends.live.model.recording import record_keys

    ids = np.random.default_rng(5).integers(0, 256, 90).tolist()
    adapters = low_rank_adapters(model, torch.tensor([ids]), rank=6)
    assert adapters.shape == (3, 2, 16, 6)
    keys = record_keys(model, ids).vectors
    for layer in range(3):
        flat = torch.from_numpy(keys[layer].transpose(1, 0, 2).reshape(90, 32))
        wanted = torch.linalg.svd(flat, full_matrices=False).Vh[:6]
        cosines = (adapters[layer].reshape(32, 6).T * wanted).sum(1).abs()
        assert cosines.tolist() == pytest.approx([1.0] * 6, abs=1e-3)


def test_all_of_the_rank_predicts_exactly(model: Any, tmp_path: Path) -> None:
    """Nothing compressed and no reading ahead: the best groups by true scores, summed over heads, are chosen."""
    policy = DecodePolicy(group_tokens=4, selected_tokens=16, compression=1, ahead=False)
    decoding = Decoding(model, tmp_path, policy, context=80, output=2)
    queries: list[Any] = []
    really = decoding.runner.decoder.queries
    decoding.runner.decoder.queries = lambda *given: queries.append(really(*given)) or queries[-1]  # type: ignore
    decoding.run()
    for layer, ids in enumerate(decoding.runner.chosen):
        keys = torch.stack(decoding.computed[layer][:80], dim=3)[0, 0]
        # Three of prefill; then one to select and one to attend with, in each layer.
        query = queries[3 + 2 * layer][0, :, 0].unflatten(0, (2, 2)).sum(1)
        best = torch.einsum("hd,htd->t", query, keys).unflatten(0, (-1, 4)).amax(1).topk(4).indices
        assert set(ids.flatten().tolist()) == set(best.tolist())


def test_a_scenario_is_carried_out_and_told() -> None:
    run = run_scenario(scenario(workload={"output": 6}, policies={"selected_tokens": 32}))
    assert run.outcome == "done"
    assert len(run.requests) == 2
    assert {span.label for span in run.spans if span.resource == "storage"} == {"Read", "Write"}
    assert 0 < run.figures["reuse_rate"] < 1
    held = run.measured["kv_metadata_bytes"] + run.measured["kv_buffer_bytes"]
    assert 0 < held <= 10 * 2**20
    # Two layers' reads lie in memory at once, at most.
    assert 0 < run.measured["kv_read_bytes"] <= 2 * 65536
    assert [len(answer) for answer in run.measured["answers"].values()] == [6, 6]


@pytest.mark.parametrize("reuse", [True, False])
def test_what_memory_takes_is_within_the_budget(reuse: bool) -> None:
    """As many slots as the budget holds, compressed keys of an output a third as long as the context."""
    policies = {"selected_tokens": 32, "compression": 2, "reuse": reuse}
    wanted = scenario(workload={"output": 50}, policies=policies, budget={"kv": "340 KiB"})
    figures = run_scenario(wanted).figures
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
    small = {"workload": {"output": 10}, "policies": {"selected_tokens": 32}}
    narrow, wide = (run_scenario(scenario(**small, **changes)) for changes in ({}, {"device": device}))
    assert wide.measured["answers"] == narrow.measured["answers"]
    # Groups of 1 KiB are read 4 KiB at a time.
    assert wide.figures["read_bytes"] == 4 * narrow.figures["read_bytes"]


def test_recorded_selections_make_the_simulator_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "selections.npz"
    small = {"policies": {"selected_tokens": 32, "slots": 12}, "workload": {"batch": 3, "output": 20}}
    live = run_scenario(scenario(live={"record_selections": str(path)}, **small))
    small["workload"] |= {"selections": str(path)}
    simulated = run_scenario(scenario(backend="sim", **small))
    for figure in ("reuse_rate", "read_bytes", "write_bytes", "tokens_decoded"):
        assert simulated.figures[figure] == live.figures[figure]
    assert simulated.figures["reuse_rate"] > 0


def test_the_file_takes_as_long_as_another_device_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.storage import paced_storage
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
        # One clock tick later than the profile says.
        monkeypatch.setattr(paced_storage, "perf_counter", iter([0.0, 9.0]).__next__)
        storage.read(Extents((0,), (4096,)))
        assert (storage.batches, storage.late, slept) == (3, 1, [])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policies": {"group_tokens": 200}}, "a group of 200 tokens is longer than the context of 150"),
        ({"policies": {"group_tokens": 0}}, "policies: a selection has 1 group of 1 token at least"),
        ({"policies": {"selected_tokens": 0}}, "policies: a selection has 1 group of 1 token at least"),
        ({"policies": {"slots": 2}}, "policies: 2 slots cannot hold the 41 groups of one selection; give 41 or more"),
        ({"policies": {"compression": 0.5}}, "policies: compression is 1 or more, got 0.5"),
        ({"live": {"dtype": "bfloat16"}}, "takes 512 bytes per row, the layout has 1024"),
        ({"system": "vllm"}, "backend torch decodes with kvswap or flexgen, not yet with vllm"),
        ({"system": "shadowkv"}, "not yet with shadowkv"),
        ({"load": {"share": 0.5}}, "leave load out"),
        ({"live": {"kv_folder": "/nonexistent"}}, "live.kv_folder: /nonexistent: no file can be made there"),
        (
            {"budget": {"kv": "1 KiB"}},
            "budget.kv: 512 B per sequence hold no selection of 37 groups of 4 tokens; .* would",
        ),
        ({"policies": {"landmarks": True}}, "policies.landmarks: backend torch scores compressed keys of all tokens"),
        ({"policies": {"values_only": True}}, "policies.values_only: backend torch"),
        ({"policies": {"scores": "sum"}}, "policies.scores: 'sum' is none of summed, by_head, best_head"),
        ({"live": {"scores": "by_head"}}, "live.scores: is a policy now: say policies.scores"),
    ],
)
def test_what_cannot_be_had_is_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        run_scenario(scenario(**changes))


def test_ops_out_of_turn_are_refused(model: Any, tmp_path: Path) -> None:
    from kvferry.machine.ops import Attended, DecodeStep, FeedForward, OutputHead, PrefillLayer, Select

    decoding = Decoding(model, tmp_path, POLICY, context=16)
    run = decoding.runner.run
    for op, told in (
        (PrefillLayer(1, 16, 1), "layer 1: the hidden state stands below 0"),
        (PrefillLayer(2, 16, 0), "batch of 2"),
        (FeedForward(1, 0), "has not attended"),
        (OutputHead(1), "passed 0 of 3 layers"),
        (Select(1, 4, 4, 0, 0), "4 groups are to be selected, 0 are on storage"),
    ):
        with pytest.raises(KvferryError, match=told):
            run(op, None)
    with pytest.raises(InputError, match="DecodeStep is no op"):
        run(DecodeStep(1, 16), None)
    assert Attended(0, None, None, 0).recent == 0
    decoding.storage.close()
    decoding.machine.close()
