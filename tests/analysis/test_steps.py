"""Decode steps and their layers, from spans; the picture of I/O beside compute."""

import itertools
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from tiny import DECODING

from kvferry.analysis import style
from kvferry.analysis.compare import compare_gantt
from kvferry.analysis.decode_picture import _purpose, decode_picture
from kvferry.analysis.decode_time import FOR_COPIES, FOR_OTHERS, FOR_STORAGE, reused_shares, storage_depth, waits_s
from kvferry.analysis.gantt import gantt
from kvferry.analysis.steps import carried_out, carried_out_s, over_tokens, prefill_end_s, steps_of, with_tokens
from kvferry.machine.ops import OPS, Op
from kvferry.machine.span import Span
from kvferry.pipelines.record import Decoded, RequestRecord, Run
from kvferry.pipelines.run import run_scenario
from kvferry.pipelines.tally import Totals
from kvferry.scenarios.loader import load_scenario


def decoded(steps: int = 2, layers: int = 2) -> Run:
    """Each layer takes 4 ms: 1 ms of attention, 2 ms of feed-forward, 1 ms of waiting; reads take 2 ms, 1 ms of them
    while nothing is computed."""
    spans, at_s = [], 1.0
    for _ in range(steps * layers):
        spans += [
            Span("storage", "Read", at_s, at_s + 2e-3, 1e6),
            Span("gpu", "DecodeAttention", at_s + 1e-3, at_s + 2e-3),
            Span("gpu", "FeedForward", at_s + 2e-3, at_s + 4e-3),
        ]
        at_s += 4e-3
    end = Totals(now_s=at_s, busy_s={}, n_bytes={}, energy_j={}, storage_utilisation=0.0)
    times_s = tuple(1.0 + 4e-3 * layers * n for n in range(steps + 1))
    batch = Decoded(batch=1, layers=layers, output=steps + 1, token_times_s=times_s, end=end)
    return Run(outcome="done", spans=tuple(spans), decoded=batch, duration_s=at_s)


def test_spans_know_their_step_and_layer() -> None:
    run = decoded()
    steps = steps_of(run)
    assert steps is not None
    assert [steps.of(span) for span in run.spans if span.label == "FeedForward"] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [steps.of(span) for span in run.spans if span.label == "DecodeAttention"] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    # What is read may be for the layer ahead.
    assert [steps.of(span) for span in run.spans if span.label == "Read"] == [
        (0, None),
        (0, None),
        (1, None),
        (1, None),
    ]
    assert steps.of(Span("gpu", "PrefillLayer", 0.0, 0.5)) == (None, None)


def test_a_layer_may_end_without_its_projections() -> None:
    """Clusters are chosen by the layer's own query: projections come first, the rest of the layer after attention."""
    run = decoded()
    spans = tuple(span._replace(label=span.label.replace("FeedForward", "RestOfLayer")) for span in run.spans)
    assert steps_of(replace(run, spans=spans)) == steps_of(run)


def test_a_step_of_which_spans_are_missing_is_none() -> None:
    run = decoded(steps=3)
    steps = steps_of(Run(outcome="done", spans=run.spans[:-1], decoded=run.decoded))
    assert steps is not None
    assert len(steps.ends_s) == 2
    assert steps_of(Run(outcome="done", spans=run.spans)) is None
    with pytest.raises(ValueError, match="nothing to draw"):
        decode_picture(Run(outcome="done", spans=run.spans))


def test_the_picture_shows_io_beside_compute() -> None:
    with mpl.rc_context(style.RC):
        above, below, by_step, *_ = decode_picture(decoded(), title="tiny: kvswap").axes
    assert by_step.get_title(loc="left") == "By step: what each token waits for"
    assert [label.get_text() for label in above.get_yticklabels()] == ["storage", "gpu"]
    assert [text.get_text() for text in above.texts] == ["layer 0", "layer 1"]
    heights = [bar.get_height() for bar in below.patches]
    assert heights == pytest.approx([3.0, 3.0, 2.0, 2.0])  # ms: the processor's, then storage's
    assert "4.00 ms each, the processor works 3.00 ms, storage reads for 2.00 ms" in below.get_title(loc="left")
    assert "50.0 % of that is hidden" in below.get_title(loc="left")


def copied(run: Run) -> Run:
    """The same with copies in place of reads, those of the second step's first layer alone."""
    spans = [span for span in run.spans if span.resource != "storage"]
    return replace(run, spans=(*spans, Span("copy", "Copy", 1.012, 1.014, 5e6)))


def test_copies_between_memories_have_a_row_and_are_waited_for() -> None:
    run = copied(decoded(steps=3))
    with mpl.rc_context(style.RC):
        above, below, by_step = decode_picture(run, title="tiny: specontext").axes
    # The step in which something is copied, not the one in the middle.
    assert [label.get_text() for label in above.get_yticklabels()] == ["copy", "gpu"]
    assert above.get_title(loc="left").endswith("of decode step 1")
    assert "copies take 333 µs" in below.get_title(loc="left")
    words = [text.get_text() for text in by_step.get_legend().get_texts()]
    assert "waiting for copies" in words and "waiting for storage" not in words
    steps = steps_of(run)
    assert steps is not None
    waits = waits_s(run.spans, steps, np.array([1.0, 1.008, 1.016]), lambda span: span.label)
    assert waits[FOR_COPIES].tolist() == pytest.approx([0.0, 1e-3])
    assert waits[FOR_OTHERS].tolist() == pytest.approx([2e-3, 1e-3])


def test_layers_are_drawn_where_something_moves() -> None:
    """One choice for all layers is copied before the first of them computes."""
    run = decoded(layers=12)
    spans = tuple(span for span in run.spans if span.resource != "storage")
    for moves, first in (([], "Layers 3 to 7"), ([Span("copy", "Copy", 1.0, 1.001)], "Layers 0 to 4")):
        with mpl.rc_context(style.RC):
            above = decode_picture(replace(run, spans=(*spans, *moves))).axes[0]
        assert above.get_title(loc="left").startswith(first)


def test_an_op_says_how_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "Dequantise", type("Dequantise", (), {"purpose": "attention", "of_block": True}))  # type: ignore[arg-type]
    assert _purpose(Span("gpu", "Dequantise", 0.0, 1.0)) == "attention"
    assert style.kind_of(Span("gpu", "Dequantise", 0.0, 1.0)) == "decode"


def test_an_op_of_attention_is_of_its_layer_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"ends_layer": False}
    monkeypatch.setitem(OPS, "Dequantise", type("Dequantise", (), {"purpose": "attention", **plain}))  # type: ignore[arg-type]
    monkeypatch.setitem(OPS, "Score", type("Score", (), {"purpose": "choosing KV", **plain}))  # type: ignore[arg-type]
    steps = steps_of(decoded())
    assert steps is not None
    first_layer = Span(steps.processor, "DecodeAttention", steps.starts_s[0], steps.ends_s[0][0])
    assert steps.of(first_layer) == (0, 0)
    assert steps.of(first_layer._replace(label="Dequantise")) == (0, 0)
    assert steps.of(first_layer._replace(label="Score")) == (0, None)


def test_a_new_op_that_says_nothing_is_drawn_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # As a class in machine/ops.py would be, and gone again after the test.
    monkeypatch.setitem(OPS, "Dequantise", Op)
    run = decoded()
    extra = [span._replace(label="Dequantise") for span in run.spans if span.label == "DecodeAttention"]
    with mpl.rc_context(style.RC):
        above, _, by_step, *_ = decode_picture(replace(run, spans=(*run.spans, *extra))).axes
    for axis in (above, by_step):
        words = [text.get_text() for text in axis.get_legend().get_texts()]
        assert "Dequantise" in words and "rest" not in words


def test_titles_say_what_part_of_the_output_is_drawn() -> None:
    run = decoded()
    assert run.decoded is not None
    assert with_tokens("tiny", run) == "tiny"
    longer = replace(run, decoded=replace(run.decoded, output=1000))
    assert with_tokens("tiny", longer) == "tiny, first 3 of 1,000 tokens"
    assert with_tokens("", replace(longer, decoded=None)) == ""
    with mpl.rc_context(style.RC):
        assert "3 of 1,000 tokens" in decode_picture(longer, title="tiny").get_suptitle()


def test_what_each_token_waits_for_adds_up_to_its_step() -> None:
    """Of 8 ms per step 2 go to attention, 4 to feed-forward; in the other 2 storage reads."""
    run = decoded()
    steps, edges_s = steps_of(run), np.array([1.0, 1.008, 1.016])
    assert steps is not None
    names = {"DecodeAttention": "attention", "FeedForward": "layer"}
    waits = waits_s(run.spans, steps, edges_s, lambda span: names[span.label])
    found = {kind: pytest.approx(seconds.tolist()) for kind, seconds in waits.items()}
    assert found == {
        "attention": [2e-3, 2e-3],
        "layer": [4e-3, 4e-3],
        FOR_STORAGE: [2e-3, 2e-3],
        FOR_COPIES: [0.0, 0.0],
        FOR_OTHERS: [0.0, 0.0],
    }


def test_storage_has_as_many_batches_as_overlap() -> None:
    """Two reads of 2 ms in each step of 8 ms; a write of 4 ms that begins with the second step lies beside them."""
    spans = (*decoded().spans, Span("storage", "Write", 1.008, 1.012))
    assert storage_depth(spans, np.array([1.0, 1.008, 1.016])) == pytest.approx([0.5, 1.0])


def test_reuse_over_time_is_drawn_where_blocks_are_kept() -> None:
    run = decoded()
    assert run.decoded is not None
    assert len(decode_picture(run).axes) == 4
    kept = replace(run, decoded=replace(run.decoded, reuses=True, step_blocks=((8, 2), (4, 3))))
    with mpl.rc_context(style.RC):
        axes = decode_picture(kept).axes
    assert len(axes) == 5
    assert axes[3].lines[0].get_ydata().tolist() == [25.0, 75.0]
    assert axes[3].get_title(loc="left") == "Reuse, of these 2 steps: 41.7 % was there already"
    assert np.isnan(reused_shares([(0, 0)])).all()


def test_blocks_of_steps_add_up_to_those_of_the_run() -> None:
    run = run_scenario(load_scenario(DECODING))
    assert run.decoded is not None
    assert len(run.decoded.step_blocks) == len(run.decoded.token_times_s) - 1
    sums = [sum(column) for column in zip(*run.decoded.step_blocks, strict=True)]
    assert sums == [run.decoded.end_counts["wanted"], run.decoded.end_counts["reused"]]
    assert sums[0] > sums[1] > 0


def test_prefill_of_a_decoded_batch_is_no_load() -> None:
    run = run_scenario(load_scenario(DECODING, ["workload.batch=2"]))
    with mpl.rc_context(style.RC):
        figure = gantt(run)
    prefill, decoding = figure.axes
    assert prefill.get_title(loc="left").startswith("Prefill: ")
    # Two sequences alike need no rows of their own.
    assert decoding.get_title(loc="left").startswith("Decoding 11 tokens more: ")
    assert decoding.get_xlim()[1] == pytest.approx(run.duration_s - prefill.get_xlim()[1])


def test_prefill_and_decoding_are_apart_where_no_token_comes_before_all_prompts() -> None:
    def request(n: int, *times_s: float) -> RequestRecord:
        return RequestRecord(request=n, arrival_s=0.0, first_token_s=times_s[0], token_times_s=times_s)

    run = replace(decoded(), requests=(request(0, 2.0, 5.0), request(1, 3.0, 6.0)))
    assert prefill_end_s(run) == 3.0
    assert prefill_end_s(replace(run, requests=(request(0, 2.0, 2.5), request(1, 3.0, 6.0)))) is None
    assert prefill_end_s(replace(run, decoded=None)) is None


def test_systems_are_drawn_over_as_many_tokens() -> None:
    def run(steps: int) -> Run:
        one = decoded(steps=steps)
        assert one.decoded is not None
        times_s = one.decoded.token_times_s
        record = RequestRecord(request=0, arrival_s=0.0, first_token_s=1.0, token_times_s=times_s)
        return replace(one, requests=(record,))

    with mpl.rc_context(style.RC):
        figure = compare_gantt({"long": run(8), "short": run(2)}, title="both")
    assert figure.get_suptitle() == "both, first 3 of 9 tokens of each"
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "long: 8.00 ms per token", "short: 8.00 ms per token"
    ]  # fmt: skip
    assert figure.axes[0].get_xlim() == (0.0, pytest.approx(0.016))
    with mpl.rc_context(style.RC):
        figure = compare_gantt({"none": Run(outcome="out_of_memory"), "long": run(8)})
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["long: 8.00 ms per token", "none"]
    assert figure.axes[1].get_title(loc="right") == "out of memory"


def test_another_part_of_the_output_is_named_by_hand() -> None:
    """One system decodes the first tokens, of 8 ms; the other later ones, each of which counts twice as long."""
    early, late = decoded(steps=4), decoded(steps=4)
    record = RequestRecord(request=0, arrival_s=0.0, first_token_s=1.0)
    assert early.decoded is not None and late.decoded is not None
    times_s = early.decoded.token_times_s
    mean_s = tuple(1.0 + 16e-3 * n for n in range(3))
    further = replace(
        late.decoded, output=90, token_times_s=mean_s, carried_out_s=times_s, carried_out=(0, 50, 51, 52, 53)
    )
    runs = {
        "late": replace(late, requests=(replace(record, token_times_s=mean_s),), decoded=further),
        "early": replace(early, requests=(replace(record, token_times_s=times_s),)),
    }
    with mpl.rc_context(style.RC):
        figure = compare_gantt(runs, title="both")
    assert figure.get_suptitle() == "both, 5 of 90 tokens of each"
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "early: 8.00 ms per token; its first ones: 8.00 ms", "late: 16.0 ms per token; these: 8.00 ms"
    ]  # fmt: skip


def test_systems_that_carry_out_all_are_drawn_over_the_tokens_of_those_that_skip_some_by_hand() -> None:
    """Steps 1 to 4 take 8 ms, 5 to 8 take 16 ms; the other system carries out 3, 6 and 7."""
    edges_s = list(itertools.accumulate([8e-3] * 4 + [16e-3] * 4, initial=1.0))
    spans = tuple(Span("gpu", "FeedForward", begin_s, end_s) for begin_s, end_s in itertools.pairwise(edges_s))
    record = RequestRecord(request=0, arrival_s=0.0, first_token_s=1.0, token_times_s=tuple(edges_s))
    some = decoded(steps=3)
    assert some.decoded is not None
    batch = replace(some.decoded, output=9)
    every = replace(some, spans=spans, requests=(record,), decoded=replace(batch, token_times_s=tuple(edges_s)))
    times_s = batch.token_times_s
    skips = replace(batch, carried_out_s=times_s, carried_out=(0, 3, 6, 7))
    skipping = replace(some, requests=(replace(record, token_times_s=times_s),), decoded=skips)
    view = over_tokens(every, (0, 3, 6, 7))
    assert view is not None and view.duration_s == pytest.approx(0.04)
    assert [(span.start_s, span.end_s) for span in view.spans] == [
        (pytest.approx(begin_s, abs=1e-12), pytest.approx(end_s))
        for begin_s, end_s in itertools.pairwise((0.0, 8e-3, 24e-3, 40e-3))
    ]
    assert over_tokens(every, (0, 9)) is None
    with mpl.rc_context(style.RC):
        figure = compare_gantt({"skipping": skipping, "every": every}, title="both")
    assert figure.get_suptitle() == "both, 4 of 9 tokens of each"
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "skipping: 8.00 ms per token", "every: 12.0 ms per token; these: 13.3 ms"
    ]  # fmt: skip


@pytest.mark.parametrize("part", ["spread", "middle", "end"])
def test_a_system_in_memory_is_drawn_over_the_same_part_of_the_output(part: str) -> None:
    """It attends to ever more: its first tokens would look faster than those of the others, which are further on."""
    workload = {**DECODING["workload"], "output": 2000, "decoded": 18, "part": part}
    both = {
        name: run_scenario(load_scenario({**DECODING, "system": name, "workload": workload, "budget": {}}))
        for name in ("flexgen", "vllm")
    }
    tokens = carried_out(both["flexgen"])
    assert len(tokens) == 18 and tokens[1] > 30 and tokens[-1] <= 1999 and carried_out(both["vllm"]) == range(2000)
    with mpl.rc_context(style.RC):
        figure = compare_gantt(both)
    assert figure.get_suptitle() == "18 of 2,000 tokens of each"
    assert not any("first" in axis.get_title(loc="left") for axis in figure.axes)
    times_s = carried_out_s(both["vllm"])
    view = over_tokens(both["vllm"], tokens)
    assert view is not None
    assert view.duration_s == pytest.approx(sum(times_s[n] - times_s[n - 1] for n in tokens[1:]))


@pytest.mark.parametrize("part", ["spread", "middle"])
def test_steps_of_any_part_of_an_output_are_found(part: str) -> None:
    workload = {**DECODING["workload"], "output": 200, "decoded": 18, "part": part}
    policies = {"selected_tokens": 64, "residency": "none", "placement": "storage"}
    run = run_scenario(
        load_scenario({**DECODING, "system": "specontext", "workload": workload, "policies": policies, "budget": {}})
    )
    steps = steps_of(run)
    assert run.outcome == "done" and steps is not None and run.decoded is not None
    # All that was carried out, also what only warmed buffers up.
    assert len(steps.starts_s) == 17
    assert len(run.decoded.token_times_s) == (18 if part == "middle" else 10)
    last = [steps.of(span) for span in run.spans if span.label == "FeedForward"]
    assert last == [(step, layer) for step in range(len(steps.starts_s)) for layer in range(run.decoded.layers)]
    assert with_tokens("", run) == "18 of 200 tokens"


def test_a_real_pipeline_has_steps() -> None:
    run = run_scenario(load_scenario(DECODING))
    steps = steps_of(run)
    assert steps is not None
    assert run.decoded is not None
    assert np.shape(steps.ends_s) == (len(run.decoded.token_times_s) - 1, run.decoded.layers)
