"""``kvferry traces``: what each command prints and writes, with good and bad input."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from kvferry.cli.traces import app
from kvferry.specs.errors import InputError
from kvferry.traces.catalogue import FOLDER_VARIABLE
from kvferry.traces.format import read_trace
from kvferry.traces.generate import read_model
from kvferry.traces.resolve import bandwidth_trace
from kvferry.traces.selections import SelectionStream


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{n}.0 {8 + 8 * (n % 3)}\n" for n in range(120)))
    return path


def test_list_names_what_is_here_and_what_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    listed = json.loads(run("list", "--json").stdout)
    assert listed["folder"] == str(tmp_path)
    here = {row["name"]: row["here"] for row in listed["traces"]}
    assert here["wifi-850"] is True
    assert here["zhuge-4g-3"] is False
    assert len(here) == 79
    assert "wifi-campus" in run("list").stdout


def test_show_gives_figures(log):
    shown = json.loads(run("show", log, "--json").stdout)
    assert shown["mean"] == pytest.approx(2e6)
    assert shown["duration_s"] == 120
    assert "16.0 Mbit/s" in run("show", log).stdout
    assert "% " in run("show", "load-bursty").stdout


def test_show_and_scenarios_tell_traces_of_arrays_apart(tmp_path):
    path = tmp_path / "selections.npz"
    SelectionStream(np.array([[[[1, 2]]]], dtype=np.int32), groups=4).save(path)
    shown = json.loads(run("show", path, "--json").stdout)
    assert shown["kind"] == "selections"
    assert shown["arrays"]["ids"] == "int32[1, 1, 1, 2]"
    assert "int32[1, 1, 1, 2]" in run("show", path).stdout
    with pytest.raises(InputError, match="is a selections trace"):
        bandwidth_trace(str(path))
    for content in (b"", b"PK\x03\x04 not really", b"hello"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a trace of arrays"):
            run("show", path)


def test_import_writes_a_trace_that_can_be_replayed(log, tmp_path):
    out = tmp_path / "trace.csv"
    said = run("import", log, "-o", out, "--trim", "5:65", "--drop-slow-start", "--on-end", "hold")
    assert said.stdout == ""
    stored = read_trace(out)
    assert (stored.trace.duration_s, stored.trace.on_end) == (57, "hold")
    assert stored.tags == {"source": "log.txt", "reader": "stamped", "trimmed": "5:65", "slow_start": "dropped"}
    assert bandwidth_trace(str(out)).rates.tolist() == stored.trace.rates.tolist()


def test_plot_draws_the_same_picture_twice(log, tmp_path):
    for name in ("a.png", "b.png"):
        run("plot", log, "wifi-850", "-o", tmp_path / name, "--span", ":30")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    run("plot", "load-bursty", "-o", tmp_path / "c.svg")
    assert "<svg" in (tmp_path / "c.svg").read_text()


def test_fit_writes_a_model_that_a_scenario_can_name(log, tmp_path):
    out = tmp_path / "mine.yaml"
    run("fit", log, "-o", out, "--mean", "20 Mbit/s", "--std", "4 Mbit/s", "--duration", "2 min", "--about", "Mine")
    model = read_model(out)
    assert (model.name, model.duration_s, model.description) == ("mine", 120, "Mine")
    assert model.fitted_to == f"mean 20 Mbit/s and std 4 Mbit/s; shape, time structure and fades of {log}"
    assert bandwidth_trace(str(out)).mean() == pytest.approx(2.5e6, rel=0.01)
    assert json.loads(run("fit", log, "--json").stdout)["figures"]["mean_mbit_per_s"][0] == 16.0
    assert "autocorrelation_1s_lag_1" in run("fit", log).stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["show", "wifi-85"], "'wifi-850'"),
        (["show", "zhuge-4g-3"], "kvferry traces fetch"),
        (["import", "LOG", "-o", "OUT.csv", "--reader", "iperf"], "iperf3-text"),
        (["import", "LOG", "-o", "OUT.csv", "--trim", "5"], "is not a span"),
        (["import", "LOG", "-o", "OUT.csv", "--trim", "nan:"], "is not a span"),
        (["import", "LOG", "-o", "OUT.csv", "--trim", "200:"], "nothing is left"),
        (["import", "LOG", "-o", "OUT.csv", "--on-end", "stop"], "--on-end"),
        (["import", "absent", "-o", "OUT.csv"], "no such file"),
        (["import", "LOG", "-o", "LOG/out.csv"], "is a file, not a folder"),
        (["import", "LOG", "-o", "/nonexist/x.csv"], "there is no folder /nonexist"),
        (["import", "LOG", "-o", ""], "name a file"),
        (["plot", "LOG", "-o", "OUT.pdf"], ".png or .svg"),
        (["plot", "LOG", "load-bursty", "-o", "OUT.png"], "draw them apart"),
        (["plot", "LOG", "LOG", "LOG", "LOG", "LOG", "-o", "OUT.png"], "at most 4"),
        (["plot", "LOG", "-o", "OUT.png", "--span", "9:3"], "span"),
        (["fetch"], "--all"),
        (["fetch", "wifi-850x"], "no trace is called"),
        (["fetch", "wifi7-be200"], "transcript"),
        (["fit", "load-bursty"], "a bandwidth trace is needed"),
        (["fit", "LOG", "--mean", "20"], "--mean: '20' has no unit"),
        (["fit", "LOG", "--mean", "-3 Mbit/s"], "--mean"),
        (["fit", "LOG", "--mean", "1 Mbit/s", "--median", "1 Mbit/s"], "only one"),
        (["fit", "LOG", "--name", "Bad Name"], "name: "),
        (["fit", "LOG", "--duration", "1e7 s"], "duration_s: "),
        (["show", "x" * 300], "no trace is called"),
        (["show", "a\0b"], "no trace is called"),
        (["show", "~nobody-of-that-name/x"], "no trace is called"),
        (["import", "x" * 300, "-o", "OUT.csv"], "File name too long"),
        (["import", "LOG", "-o", "x" * 300], "255 bytes at most"),
        (["plot", "LOG", "-o", "a\0.png"], "255 bytes at most"),
    ],
)
def test_wrong_words_are_reported(words, what, log, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "none"))
    before = sorted(tmp_path.iterdir())
    words = [word.replace("LOG", str(log)).replace("OUT", str(tmp_path / "out")) for word in words]
    with pytest.raises(InputError) as error:
        run(*words)
    assert what in str(error.value)
    assert sorted(tmp_path.iterdir()) == before
