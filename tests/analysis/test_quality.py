"""Marks of lower quality, in tables, pictures, JSON and the report."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny import DECODING, changed

import kvferry
from kvferry.analysis.compare_bars import compare_bars
from kvferry.analysis.quality import footnotes, is_unknown, lower_quality
from kvferry.analysis.study_plots import marked
from kvferry.analysis.tables import compare_table, full_rate, run_table, show

ALL = {"attended_share": 1.0, "attended_tokens": 32768.0, "attention_mass": 1.0, "tpot_s": 0.1}
SPARSE = {"attended_share": 0.0125, "attended_tokens": 409.6, "tpot_s": 0.02}
RATES = {"throughput_tokens_per_s": 10.0, "decode_tokens_per_s": 10.0, "end_to_end_tokens_per_s": 2.0}
SYSTEMS = {
    "full": {**ALL, **RATES},
    "few": {**SPARSE, **RATES, "attention_mass": 0.6, "attention_mass_spread": 0.02},
    "mine": {**SPARSE, **RATES},
}


def printed(table: object) -> list[str]:
    import io

    file = io.StringIO()
    show(table, file)  # type: ignore[arg-type]
    return [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]


def test_what_leaves_tokens_out_is_marked_and_unknown_quality_is_told() -> None:
    assert lower_quality(SYSTEMS) == {"few": "410 of 32,768 tokens", "mine": "410 of 32,768 tokens"}
    assert [is_unknown("attention_mass", one) for one in SYSTEMS.values()] == [False, False, True]
    assert footnotes(SYSTEMS)[0].startswith("* attends to a part of the tokens")
    assert "byte-large model at 4,096 tokens, interpolated" in footnotes(SYSTEMS)[0]
    assert "an indication" in footnotes(SYSTEMS)[0]
    assert not footnotes({"full": SYSTEMS["full"]})
    more = {**SYSTEMS, "more": {**SPARSE, **RATES, "attended_tokens": 1000.0}}
    assert len(footnotes(SYSTEMS)) == 1 and "--equal-tokens N" in footnotes(more)[1]
    sessions = {name: {**one, "computed_share": 0.1} for name, one in more.items()}
    assert "; policies.decode.selected_tokens=N gives" in footnotes(sessions)[1]
    # Streamed KV of a codec that was not measured.
    assert is_unknown("kv_relative_error", {"streamed_bits_per_value": 4.0})
    assert not is_unknown("kv_relative_error", {"ttft_s": 1.0})
    lines = printed(compare_table(SYSTEMS, ranked_by="throughput_tokens_per_s"))
    by_system = {line.split()[0]: line for line in lines}
    assert "few *" in by_system["few"] and "60.0 % ± 2.00 %" in by_system["few"]
    assert "mine *" in by_system["mine"] and "not known" in by_system["mine"]
    assert "full *" not in by_system["full"] and "32,768" in by_system["full"] and "100 %" in by_system["full"]
    assert any("attention mass" in line and "not known" in line for line in printed(run_table(SYSTEMS["mine"])))


def test_what_drops_a_part_of_the_prompt_is_marked() -> None:
    helped = {"assisted_share": 1.0, "ttft_s": 1.0, "ttft_p95_s": 1.0}
    systems = {
        "helped": {**helped, "assisted_ratio": 0.25},
        "cloud": {**helped, "assisted_ratio": 1.0},
        "alone": {"assisted_share": 0.0, "ttft_s": 12.0},
    }
    assert lower_quality(systems) == {"helped": "25.0 % of the prompt"}
    (line,) = footnotes(systems)
    assert line.startswith("* prefills a part of the prompt (helped), which the cloud chose")
    by_system = {line.split()[0]: line for line in printed(compare_table(systems, ranked_by="ttft_s"))}
    assert "helped *" in by_system["helped"] and "0.25" in by_system["helped"]
    assert "prompt kept" in by_system["system"] and "cloud *" not in by_system["cloud"]
    frame = pd.DataFrame(
        {"system": ["helped", "cloud", "alone"], "outcome": "done", "assisted_ratio": [0.25, 1.0, None]}
    )
    rows, mark = marked(frame)
    assert (rows["system"].tolist(), mark) == (["helped *", "cloud", "alone"], "* prefills a part of the prompt")


def test_what_keeps_kv_in_fewer_bits_than_another_is_marked() -> None:
    systems = {"a": SYSTEMS["full"], "b": {**SYSTEMS["full"], "kv_bits_per_value": 8.0}}
    assert lower_quality(systems) == {"b": "8-bit KV"}
    assert footnotes(systems) == [
        "* keeps KV in fewer bits than others (b): coarser KV, hence answers of lower quality"
    ]
    # All alike, and beside a run that did not finish.
    assert not lower_quality({"b": systems["b"], "c": systems["b"], "failed": {}})
    both = {"a": SYSTEMS["full"], "b": {**SYSTEMS["few"], "kv_bits_per_value": 8.0}}
    assert lower_quality(both) == {"b": "8-bit KV, 410 of 32,768 tokens"}
    frame = pd.DataFrame({"variant": ["a", "b"] * 2, "outcome": "done", "kv_bits_per_value": [None, 8.0] * 2})
    rows, mark = marked(frame)
    assert (rows["variant"].tolist(), mark) == (["a", "b *"] * 2, "* keeps KV in fewer bits than others")


def test_runs_say_how_many_bits_their_kv_has() -> None:
    described = changed(DECODING, system="vllm", budget={"kv_share": None}, policies={})
    assert "kv_bits_per_value" not in kvferry.run(described).metrics
    small = kvferry.run(changed(described, precision={"kv_value_bytes": 1}))
    assert small.metrics["kv_bits_per_value"] == 8


def test_what_a_run_has_measured_is_no_indication() -> None:
    measured = {"full": SYSTEMS["full"], "mine": {**SPARSE, **RATES, "attention_mass": 0.6, "agreement_share": 0.9}}
    (line,) = footnotes(measured)
    assert line.endswith("how far they are from full attention was measured in these runs")
    assert "an indication" in footnotes({**measured, "few": SYSTEMS["few"]})[0]
    lines = printed(compare_table(measured, ranked_by="throughput_tokens_per_s"))
    assert any("mine *" in one and "60.0 %" in one and "90.0 %" in one and "not known" not in one for one in lines)


def test_both_rates_stand_in_tables_by_whole_names() -> None:
    heading = printed(compare_table(SYSTEMS, ranked_by="throughput_tokens_per_s"))[0]
    assert heading.index("tokens/s, decoding") < heading.index("vs best") < heading.index("tokens/s, with prefill")
    whole = {name: {**one, "throughput_tokens_per_s": 2.0} for name, one in SYSTEMS.items()}
    heading = printed(compare_table(whole, ranked_by="throughput_tokens_per_s"))[0]
    assert heading.index("tokens/s, with prefill") < heading.index("vs best") < heading.index("tokens/s, decoding")
    labels = [line.split("  ")[0].strip() for line in printed(run_table({**SYSTEMS["full"], "requests": 1.0}))]
    assert "tokens/s, decoding" in labels and "tokens/s, with prefill" in labels and "tokens/s" not in labels
    # Of another kind of workload there is one.
    assert full_rate({"one": {"throughput_tokens_per_s": 1.0}}, "throughput_tokens_per_s") == "throughput_tokens_per_s"
    assert full_rate({}, "ttft_s") == "ttft_s"


def test_bars_name_the_rate_and_the_marks() -> None:
    left = compare_bars(SYSTEMS, ranked_by="throughput_tokens_per_s").axes[0]
    assert left.get_xlabel() == "tokens/s, decoding"
    assert {label.get_text() for label in left.get_yticklabels()} == {
        "full", "few * (410 of 32,768 tokens)", "mine * (410 of 32,768 tokens)"
    }  # fmt: skip


@pytest.fixture(scope="module")
def compared() -> kvferry.Comparison:
    described = changed(DECODING, budget={"kv_share": None}, policies={})
    return kvferry.compare(described, ["kvswap", "quest", "flexgen"], equal_tokens=128)


def test_python_gives_the_same_number_and_the_marks(compared: kvferry.Comparison, tmp_path: Path) -> None:
    assert set(compared.marks) == {"kvswap", "quest"}
    attended = compared.metrics["attended_tokens"]
    assert attended["flexgen"] == 1030
    assert abs(attended["kvswap"] - attended["quest"]) < 16 and attended.min() >= 128
    compared.write(tmp_path, plots=False)
    assert json.loads((tmp_path / "comparison.json").read_text())["marks"] == compared.marks
    with pytest.raises(kvferry.InputError, match="equal_tokens: at least 1 token"):
        kvferry.compare(DECODING, ["kvswap"], equal_tokens=0)
    with pytest.raises(kvferry.InputError, match="equal_tokens: quickstart is context-reuse"):
        kvferry.compare("quickstart", equal_tokens=8)


def test_a_system_that_cannot_have_the_number_is_a_row_with_the_reason() -> None:
    described = changed(DECODING, system="vllm", budget={"kv_share": None}, policies={})
    few = kvferry.compare(described, ["streaming-llm", "vllm", "full-eager"], equal_tokens=4)
    assert set(few.results) == {"vllm", "full-eager"}
    why = "4 tokens are no more than its 4 sink_tokens"
    assert few.failed == {"streaming-llm": why}
    assert f"streaming-llm: failed: {why}" in few.remarks
    assert [line.split()[-1] for line in repr(few).splitlines() if "streaming-llm" in line] == ["failed"]
    with pytest.raises(kvferry.InputError, match=f"streaming-llm: {why}"):
        kvferry.compare(described, ["streaming-llm"], equal_tokens=4)


@pytest.mark.parametrize(
    ("changes", "settings", "why"),
    [
        ({}, {"budget": {"kv_share": None, "kv": "50 kB"}}, "hold no selection of 25 groups"),
        (
            {"device": "tiny", "system": "vllm", "policies": {}, "budget": {"kv_share": None}},
            {},
            "on which quest keeps KV",
        ),
    ],
)
def test_a_system_that_cannot_run_is_a_row_with_the_reason_beside_others(
    changes: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    described = changed(DECODING, **{"policies": {}, **changes})
    some = kvferry.compare(described, ["quest", "vllm"], settings)
    assert set(some.results) == {"vllm"} and some.results["vllm"].outcome == "done"
    assert why in some.failed["quest"]
    assert [line.split()[-1] for line in repr(some).splitlines() if line.lstrip().startswith("quest")] == ["failed"]
    with pytest.raises(kvferry.InputError, match=why):
        kvferry.compare(described, ["quest"], settings)


def test_the_report_has_marks_and_what_is_not_known(compared: kvferry.Comparison, tmp_path: Path) -> None:
    pytest.importorskip("itables")
    from kvferry.api.report_page.page import _of_comparison
    from kvferry.api.report_page.results import Comparison, RunResult

    spans = pd.DataFrame({"resource": ["gpu"], "label": ["A"], "start_s": [0.0], "end_s": [1.0], "n_bytes": [0.0]})
    described = {"scenario": "s", "outcome": "done", "provenance": {}}
    runs = [
        RunResult(name, {**described, "system": name, "metrics": one}, "", spans, spans)
        for name, one in SYSTEMS.items()
    ]
    section = _of_comparison(Comparison("three", runs), count())
    table = dict(section.tables)["Figures"].replace('\\"', '"')
    assert '"attention mass", "100 %", "60.0 %", "not known"' in table
    assert "few *" in table and "full *" not in table
    assert "few * " not in section.charts[0] and "few *" in section.charts[0]
    assert "few *: 410 of 32,768 tokens" in section.said
