"""What a command imports, by ``sys.modules``: a small run takes no longer to start than it must."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Calls the command with each of some lists of arguments, one after the other; says what is imported behind each, and
# what it had to say.
PROGRAM = """\
import contextlib, io, json, sys
from kvferry.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["kvferry", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        with contextlib.suppress(SystemExit):
            main()
    sys.__stdout__.write(json.dumps([sorted(sys.modules), said.getvalue()]) + "\\n")
"""
ASSIST_AND_DECODING = {
    "kvferry.pipelines.assist",
    "kvferry.pipelines.decoding.workload",
    "kvferry.pipelines.decoding.systems",
    "kvferry.policies.assist",
    "kvferry.policies.decode.selector",
    "kvferry.pipelines.guarded",
    "kvferry.traces.clustered_keys",
    "kvferry.backends.live",
}
DRAWN_OR_WRITTEN = {"matplotlib", "pandas", "pyarrow", "PIL", "joblib"}
OTHER = {
    "pint",
    "rich",
    "scipy",
    "torch",
    "pulp",
    "highspy",
    "requests",
    "pooch",
    "jinja2",
    "asyncio",
    "multiprocessing",
}


def imported(*commands: list[str]) -> list[tuple[set[str], str]]:
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
    return [(set(modules), said) for modules, said in map(json.loads, done.stdout.splitlines())]


def test_a_small_run_imports_only_what_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (calculated, _), (written, _), (drawn, _) = imported(
        ["run", "quickstart", "--json"],
        ["run", "quickstart", "--no-plots", "--output", "written"],
        ["run", "quickstart", "--output", "drawn"],
    )
    assert {"kvferry.pipelines.loading.workload", "numpy", "simpy", "pydantic"} <= calculated
    assert not (ASSIST_AND_DECODING | DRAWN_OR_WRITTEN | OTHER) & calculated
    assert (tmp_path / "written" / "spans.parquet").is_file()
    assert {"pyarrow", "rich"} <= written
    assert not (ASSIST_AND_DECODING | DRAWN_OR_WRITTEN - {"pyarrow"} | {"pint", "jinja2"}) & written
    assert (tmp_path / "drawn" / "plots").is_dir()
    assert "matplotlib" in drawn
    assert not (ASSIST_AND_DECODING | {"pandas", "joblib", "pint", "jinja2"}) & drawn


WITHOUT_HELP_TEXTS = """\
from kvferry.cli.output import import_matplotlib
import_matplotlib()
from matplotlib.axes import Axes
from matplotlib.artist import Artist
print(Axes.set.__doc__)
class Own(Artist): pass
print(Own.set.__doc__)
"""


def test_matplotlib_is_imported_without_help_texts_and_writes_them_for_others() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_HELP_TEXTS], capture_output=True, text=True, check=True)
    without, own = done.stdout.split("\n", 1)
    assert without == "None"
    assert own.startswith("Set multiple properties at once.")


# Calls the command, and gets the signal while it imports what it needs.
WHILE_IMPORTING = """\
import os, signal, sys

class Importing:
    def find_spec(self, name, path=None, target=None):
        if name == "kvferry.cli.main":
            os.kill(os.getpid(), signal.{name})

sys.meta_path.insert(0, Importing())
from kvferry.cli.entry import main
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_it_starts_ends_it_quietly(name: str) -> None:
    program = [sys.executable, "-c", WHILE_IMPORTING.format(name=name), "models"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    # A shell says 130 and 143.
    assert (ended.returncode, ended.stdout, ended.stderr) == (-getattr(signal, name), "", "")


NOT_RUN: list[tuple[dict[str, object], str]] = [
    ({"model_type": "olmo"}, "model_type 'olmo' is not run for real; .*; did you mean 'olmo2'"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
    ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "has quantised weights"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' makes keys depend on later"),
    ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "rope_type 'longrope'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({}, "has no model.safetensors"),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, set[str], str]]:
    """The folders of these models, what is imported once each was asked for, and what was said."""
    dimensions = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 256)
    dimensions |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 4)
    folders: list[Path] = [tmp_path_factory.mktemp("model") for _ in NOT_RUN]
    for folder, (config, _) in zip(folders, NOT_RUN, strict=True):
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | dimensions | config))
    found = imported(*(["run", "kvswap/live", "--set", f"model={folder}"] for folder in folders))
    return [(folder, *one) for folder, one in zip(folders, found, strict=True)]


@pytest.mark.parametrize("n", range(len(NOT_RUN)), ids=[str(config) for config, _ in NOT_RUN])
def test_a_model_that_cannot_be_run_is_refused_before_torch_is_imported(
    refused: list[tuple[Path, set[str], str]], n: int
) -> None:
    folder, modules, said = refused[n]
    (line,) = said.splitlines()
    assert re.search(f"live.weights: {folder}.*{NOT_RUN[n][1]}", line)
    assert not {"torch", "transformers"} & modules
