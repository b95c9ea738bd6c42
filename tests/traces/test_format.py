"""Traces on disk: what is written is read back to the last bit, and what is wrong is named by its line."""

import csv
import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.specs.errors import InputError, KvferryError
from kvferry.traces import format as on_disk
from kvferry.traces.format import StoredTrace, read_trace, write_trace
from kvferry.traces.rate import RateTrace

GOOD = """# kvferry-trace 1
# kind: bandwidth
# on_end: hold
# source: written by hand
start_s,bytes_per_s
0,1e6
0.5,2500000.0
2,end
"""


def text_file(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_a_file_by_hand(tmp_path):
    stored = read_trace(text_file(tmp_path, GOOD))
    assert stored.kind == "bandwidth"
    assert stored.tags == {"source": "written by hand"}
    assert stored.trace.edges_s.tolist() == [0, 0.5, 2]
    assert stored.trace.rates.tolist() == [1e6, 2.5e6]
    assert stored.trace.on_end == "hold"


@given(
    st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(0, 1.0)), min_size=1, max_size=20),
    st.sampled_from(["loop", "hold", "end"]),
    st.sampled_from(["bandwidth", "load"]),
)
def test_what_is_written_is_read_back(tmp_path_factory, pieces, on_end, kind):
    widths, rates = zip(*pieces, strict=True)
    edges = np.concatenate([[0], np.cumsum(widths)])
    loop_from = float(edges[len(pieces) // 2]) if on_end == "loop" else 0.0
    trace = RateTrace(edges, np.array(rates), on_end, loop_from)
    path = tmp_path_factory.mktemp("traces") / "trace.csv"
    write_trace(path, StoredTrace(kind, trace, {"licence": "none"}))
    back = read_trace(path)
    assert back.kind == kind
    assert dict(back.tags) == {"licence": "none"}
    assert back.trace.edges_s.tolist() == edges.tolist()
    assert back.trace.rates.tolist() == list(rates)
    assert (back.trace.on_end, back.trace.loop_from_s) == (on_end, loop_from)


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("# kvferry-trace 1", "# kvferry-trace 2", ":1:", "first line"),
        ("# kind: bandwidth\n", "", "", "kind is None"),
        ("kind: bandwidth", "kind: weather", "", "'weather'"),
        ("# on_end: hold", "# on_end: stop", "", "'stop'"),
        ("# on_end: hold", "#on_end hold", ":3:", "not a tag"),
        ("# on_end: hold", "# kind: load", ":3:", "not a tag"),
        ("start_s,bytes_per_s", "start_s,share", ":5:", "columns"),
        ("0.5,2500000.0", "0.5,-1", ":7:", "'-1'"),
        ("0.5,2500000.0", "0.5,nan", ":7:", "'nan'"),
        ("0.5,2500000.0", "0.5,inf", ":7:", "'inf'"),
        ("0.5,2500000.0", "0.5,1e15", ":7:", "'1e15'"),
        ("0.5,2500000.0", "0.5,fast", ":7:", "'fast'"),
        ("0.5,2500000.0", "0.5", ":7:", "not a row"),
        ("0.5,2500000.0", "0,2500000.0", ":7:", "does not come after"),
        ("0,1e6", "0.1,1e6", "", "start at 0"),
        ("2,end", "1e8,end", ":8:", "'1e8'"),
        ("2,end\n", "", ":7:", "last row"),
        ("2,end", "2,end\n3,1", ":9:", "after the end"),
        (GOOD, "", ":1:", "first line"),
        ("# source: written by hand", "# loop_from_s: 0.25", "", "loop_from_s"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, old, new, where, what):
    path = text_file(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert f"{path}{where}" in str(error.value)
    assert what in str(error.value)


def test_a_load_is_a_share(tmp_path):
    text = GOOD.replace("bandwidth", "load").replace("bytes_per_s", "share").replace("1e6", "0.5")
    with pytest.raises(InputError, match=":7: rate '2500000.0'"):
        read_trace(text_file(tmp_path, text))
    assert read_trace(text_file(tmp_path, text.replace("2500000.0", "1"))).kind == "load"


def test_files_are_bounded_and_regular(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="not a regular file"):
        read_trace(tmp_path)
    monkeypatch.setattr(on_disk, "MAX_BYTES", 20)
    with pytest.raises(InputError, match="at most 20"):
        read_trace(text_file(tmp_path, GOOD))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(GOOD.encode().replace(b"1e6", b"\xff\xfe\x00"))
    with pytest.raises(InputError, match=":6: rate"):
        read_trace(path)


def test_a_failed_write_leaves_nothing_new(tmp_path, monkeypatch):
    path = text_file(tmp_path, "what was there")

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(KvferryError, match="the disk is full"):
        write_trace(path, StoredTrace("bandwidth", RateTrace.constant(1)))
    assert [p.name for p in tmp_path.iterdir()] == ["trace.csv"]
    assert path.read_text() == "what was there"


def test_a_tag_that_could_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="tag"):
        write_trace(tmp_path / "t.csv", StoredTrace("bandwidth", RateTrace.constant(1), {"Bad Key": "x"}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("a,=1+1; @SUM(A1),-2;+3 - 4, b.txt", "a,'=1+1; '@SUM(A1),'-2;'+3 - 4, b.txt"),
        ('walk,"=1+1".csv', 'walk,"\'=1+1".csv'),
        ('a;"" "@SUM(A1)","-2', 'a;"" "\'@SUM(A1)","\'-2'),
    ],
)
def test_no_tag_is_a_formula_of_a_spreadsheet(tmp_path, said, kept):
    """A log's file name stands there, and a spreadsheet cuts lines at commas, or at semicolons."""
    write_trace(path := tmp_path / "t.csv", StoredTrace("bandwidth", RateTrace.constant(1), {"source": said}))
    lines = path.read_text().splitlines()
    cells = [cell.strip() for cut in ",;" for row in csv.reader(lines, delimiter=cut) for cell in row]
    assert [cell for cell in cells if cell.startswith(tuple("=+@-"))] == []
    assert read_trace(path).tags["source"] == kept


def test_a_log_whose_name_would_command_a_terminal_is_named_in_plain_characters(tmp_path):
    """Also a name of bytes that are no text."""
    said = "a\x1b[31m\x07\x9b\u202eb\udcff.txt"
    write_trace(path := tmp_path / "t.csv", StoredTrace("bandwidth", RateTrace.constant(1), {"source": said}))
    assert path.read_text().isascii()
    assert read_trace(path).tags["source"] == r"a\x1b[31m\x07\x9b\u202eb\udcff.txt"
