"""Tables as text, and numbers as people read them."""

import io
import re
import runpy
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kvferry.analysis.compared import COMPARED
from kvferry.analysis.figures import FIGURES, explained, label_of
from kvferry.analysis.quality import lower_quality
from kvferry.analysis.tables import compare_table, run_table, show
from kvferry.specs import human


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (1.234, "1.23 s"),
        (0.0456, "45.6 ms"),
        (0.9996, "1.00 s"),
        (1.7e-5, "17.0 µs"),
        (2e-13, "0.0002 ns"),
        (100.4, "100 s"),
        (125.3, "2 min 5 s"),
        (7199.0, "119 min 59 s"),
        (7200.0, "2 h 0 min"),
        (-7530.0, "-2 h 6 min"),
        (2 * 86400.0 + 5 * 3600, "2 days 5 h"),
        (365.25 * 86400 * 226, "82,546 days 12 h"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert human.seconds(value) == text


def test_units_follow_the_key() -> None:
    written = {
        "link_bytes": (403.4e6, "403 MB"),
        "goodput_bytes_per_s": (80e6, "640 Mbit/s"),
        "throughput_tokens_per_s": (12.34, "12.3"),
        "energy_gpu_j": (0.0123, "12.3 mJ"),
        "link_utilisation": (0.123, "12.3 %"),
        "regret": (0.0031, "0.31 %"),
        "requests": (57600.0, "57,600"),
        "streamed_bits_per_value": (3.456, "3.46"),
        "wasted_bytes": (0.0, "0 B"),
        "memory_peak_bytes": (7.0, "7 B"),
        "ttft_s": (2.0, "2.00 s"),
        "seconds_per_token": (0.00043, "430 µs"),
        "first_response_bytes_max": (668.0, "668 B"),
        "slot_occupancy": (0.067, "6.70 %"),
        "space_overhead": (1.1, "110 %"),
    }
    assert {key: human.of_unit(key)(value) for key, (value, _) in written.items()} == {
        key: text for key, (_, text) in written.items()
    }


def printed(table: object) -> list[str]:
    file = io.StringIO()
    show(table, file)  # type: ignore[arg-type]
    return [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]


def test_a_run_in_human_units() -> None:
    lines = printed(
        run_table({"ttft_s": 1.3, "energy_j": 4.0, "energy_gpu_j": 3.0, "energy_base_j": 1.0, "novel_bytes": 5e6})
    )
    cells = [line.split("  ") for line in lines[2:]]
    assert [(row[0].strip() or row[1].strip(), row[-1].strip()) for row in cells] == [
        ("TTFT, mean", "1.30 s"),
        ("energy/request", "4.00 J"),
        ("base", "1.00 J"),
        ("gpu", "3.00 J"),
        ("novel_bytes", "5.00 MB"),
    ]


def test_a_run_says_nothing_twice() -> None:
    metrics = {"requests": 1.0, "requests_finished": 1.0, "ttft_s": 1.0, "ttft_p50_s": 1.0, "ttft_p95_s": 1.0,
               "bound_gap": 0.1, "regret": 0.1, "regret_p95": 0.1, "throughput_tokens_per_s": 1.0}  # fmt: skip
    assert [line.split("  ")[0].strip() for line in printed(run_table(metrics))[2:]] == [
        "TTFT, mean", "regret, at most", "energy/request", "requests"
    ]  # fmt: skip
    more = metrics | {"requests": 2.0, "tpot_s": 0.1}
    assert len(printed(run_table(more))[2:]) == len(more) + 1, "and that energy is not counted"


SYSTEMS = {
    "stream-only": {"ttft_s": 2.6, "tpot_s": 0.2, "energy_j": 10.0, "throughput_tokens_per_s": 5.0},
    "ferry": {"ttft_s": 1.3, "tpot_s": 0.1, "energy_j": 20.0, "throughput_tokens_per_s": 9.0},
    "[vllm]": {},
}


def test_systems_side_by_side_best_first() -> None:
    lines = printed(compare_table(SYSTEMS, title="quickstart [x]", outcomes={"[vllm]": "out_of_memory"}))
    assert lines[0].strip() == "quickstart [x]"
    assert lines[1].split("  ")[0].strip() == "system"
    assert [line.split()[0] for line in lines[3:]] == ["ferry", "stream-only", "[vllm]"]
    assert lines[3].split() == ["ferry", "1.30", "s", "1.00x", "20.0", "J", "100", "ms", "9.00", "done"]
    assert lines[4].split() == ["stream-only", "2.60", "s", "2.00x", "10.0", "J", "200", "ms", "5.00", "done"]
    assert lines[5].split() == ["[vllm]", "-", "-", "-", "-", "-", "out", "of", "memory"]


def test_the_best_of_each_column_is_bold() -> None:
    table = compare_table({name: SYSTEMS[name] for name in ("ferry", "stream-only")})
    cells = [list(column.cells) for column in table.columns]
    bold = [[str(cell).startswith("[bold") for cell in column] for column in cells]
    # system, TTFT, vs best, energy, TPOT, tokens/s (more is better)
    assert bold == [[False, False], [True, False], [False, False], [False, True], [True, False], [True, False]]


MANY = {
    name: dict.fromkeys(COMPARED, 0.5) | {"ttft_s": 1.0 + n, "link_bytes": 1.6e8, "energy_j": 237.0}
    for n, name in enumerate(("ferry", "strong-hybrid-two-pointer", "local-prefill"))
}


@pytest.mark.parametrize(
    ("width", "columns"),
    # system and "vs best" beside the metrics; at 240 nothing is left out
    [(60, 2), (80, 4), (120, 8), (240, 11)],
)
def test_a_comparison_fits_its_terminal(width: int, columns: int) -> None:
    table = compare_table(MANY, title="quickstart", notes=["a note"], width=width)
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(table)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert len(table.columns) == 2 + columns
    assert max(map(len, lines)) <= width
    assert "…" not in file.getvalue()
    row = next(line.split() for line in lines if "strong-hybrid-two-pointer" in line)
    assert row[:5] == ["strong-hybrid-two-pointer", "2.00", "s", "2.00x", "0.50"]
    printed = " ".join(file.getvalue().split())
    assert "a note" in printed
    left_out = [FIGURES[key].label for key in COMPARED[columns:]]
    assert (f"left out at {width} columns: {'; '.join(left_out)}" in printed) == bool(left_out)
    assert ("left out" in printed) == bool(left_out)


def test_ranked_by_what_is_better_when_high() -> None:
    lines = printed(
        compare_table(
            {"a": {"throughput_tokens_per_s": 2.0}, "b": {"throughput_tokens_per_s": 8.0}},
            ranked_by="throughput_tokens_per_s",
        )
    )
    assert [line.split() for line in lines[-2:]] == [["b", "8.00", "1.00x"], ["a", "2.00", "4.00x"]]


def test_nothing_escapes_into_a_pipe() -> None:
    file = io.StringIO()
    show(compare_table(SYSTEMS), file)
    assert "\x1b" not in file.getvalue()


def test_a_decoding_comparison_ranks_by_tokens_per_second() -> None:
    slow = {"ttft_s": 1.0, "tpot_s": 17.2, "throughput_tokens_per_s": 0.058, "requests": 1.0}
    fast = {"ttft_s": 1.2, "tpot_s": 0.5, "throughput_tokens_per_s": 15.7, "reuse_rate": 0.0, "requests": 1.0}
    table = compare_table({"flexgen": slow, "kvswap": fast}, ranked_by="throughput_tokens_per_s")
    heading, _, first, second, *_ = [line for line in printed(table) if line.strip()]
    assert [first.split()[0], second.split()[0]] == ["kvswap", "flexgen"]
    assert "270.69x" in second
    assert "KV reused" in heading
    assert "0 %" in first  # a reuse of nothing is shown


def test_every_figure_is_explained_in_docs_and_help() -> None:
    page = runpy.run_path(str(Path(__file__).parents[2] / "docs_site.py"))["figures_page"]()
    for key, figure in FIGURES.items():
        assert figure.about
        assert f"| {figure.label} | `{key}` | {figure.about}" in page
    assert "TPOT: time per output token" in explained(["tpot_s"])


def test_a_system_of_lower_quality_is_marked_beside_its_rank() -> None:
    systems = {
        "cachegen": {"ttft_s": 1.0, "streamed_bits_per_value": 1.14},
        "sparkv": {"ttft_s": 2.0, "streamed_bits_per_value": 2.99},
        "ferry": {"ttft_s": 2.1, "streamed_bits_per_value": 3.0},
        "local-prefill": {"ttft_s": 4.0},
    }
    assert lower_quality(systems) == {"cachegen": "1.14 bits"}
    lines = printed(compare_table(systems, width=200))
    assert re.split("  +", lines[0])[-2:] == ["bits per value", "KV error"]
    assert lines[2].split() == ["cachegen", "*", "1.00", "s", "1.00x", "1.14", "not", "known"]
    assert lines[3].split()[0:2] == ["sparkv", "2.00"]
    assert "* fewer than 3 bits per value" in " ".join(" ".join(lines).split())
    assert not lower_quality({name: systems[name] for name in ("sparkv", "ferry")})


def test_quality_is_told_by_errors_where_all_are_known() -> None:
    """As many bits in another encoding can be far coarser, and a mixture with computed KV is no better encoded."""
    systems = {
        "kivi": {"streamed_bits_per_value": 3.0, "kv_relative_error": 0.283, "streamed_share": 1.0},
        "ferry": {"streamed_bits_per_value": 2.99, "kv_relative_error": 0.068 * 0.66**0.5, "streamed_share": 0.66},
        "stream-only": {"streamed_bits_per_value": 2.9, "kv_relative_error": 0.068, "streamed_share": 1.0},
        "local-prefill": {"kv_relative_error": 0.0, "streamed_share": 0.0},
    }
    assert lower_quality(systems) == {"kivi": "KV error 28.3 %"}
    caption = compare_table({name: {"ttft_s": 1.0, **one} for name, one in systems.items()}, width=200).caption
    assert "* errors of what was streamed above 6.80 %" in str(caption)


def test_energy_of_devices_with_a_cloud_is_called_so_in_any_table() -> None:
    assert label_of("energy_j", True) == "devices' energy/request"
    assert label_of("energy_j", False) == "energy/request"
    assert label_of("ttft_s", True) == "TTFT, mean"


def test_intervals_of_another_figure_than_the_ranked_one_stand_below() -> None:
    systems = {"one": {"ttft_s": 1.0, "tpot_s": 0.04}, "other": {"ttft_s": 2.0, "tpot_s": 0.09}}
    ranges = {"other": {"tpot_s": (0.03, 0.09)}}
    out = StringIO()
    show(compare_table(systems, ranked_by="ttft_s", intervals=ranges), out)
    said = " ".join(out.getvalue().split())
    assert "80 % interval of TPOT: other 30.0 ms to 90.0 ms" in said
    assert said.count("80 % interval") == 1


def test_intervals_of_all_figures_are_shown() -> None:
    """The ranked one's has a column, unless ranges over seeds do; without a column of its own a figure has none."""
    systems = {name: {"ttft_s": 1.0, "tpot_s": 0.04, "energy_j": 9.0} for name in ("one", "other")}
    intervals = {"one": {"ttft_s": (0.5, 2.0), "energy_j": (8.0, 10.0), "tpot_p95_s": (0.1, 0.2)}}
    out = StringIO()
    show(compare_table(systems, ranked_by="ttft_s", intervals=intervals), out)
    said = " ".join(out.getvalue().split())
    assert "80 % interval of energy/request: one 8.00 J to 10.0 J" in said and "500 ms to 2.00 s" in said
    assert said.count("interval of") == 1
    out = StringIO()
    show(compare_table(systems, ranked_by="ttft_s", intervals=intervals, ranges={}), out)
    assert "80 % interval of TTFT, mean: one 500 ms to 2.00 s" in " ".join(out.getvalue().split())


def test_times_the_best_say_where_far_more_or_fewer_tokens_are_attended_to() -> None:
    tokens = {"kvswap": (30.0, 400.0), "same": (20.0, 700.0), "dynakv": (1.0, 5000.0), "few": (15.0, 100.0)}
    systems = {
        name: {"throughput_tokens_per_s": rate, "attended_tokens": n, "attended_share": 0.1}
        for name, (rate, n) in tokens.items()
    }
    lines = printed(compare_table(systems, ranked_by="throughput_tokens_per_s"))
    cells = {line.split()[0]: line for line in lines}
    assert "30.00x (12x tokens)" in cells["dynakv"], "5,000 of 400"
    assert "2.00x (1/4.0 of the tokens)" in cells["few"]
    assert "1.50x " in cells["same"]
    assert all("tokens)" not in cells[name] for name in ("kvswap", "same"))
    assert any("(Nx tokens): attends to N times as many tokens as the best" in line for line in lines)
    equal = {name: {**one, "attended_tokens": 400.0} for name, one in systems.items()}
    assert not any("x tokens)" in line for line in printed(compare_table(equal, ranked_by="throughput_tokens_per_s")))
