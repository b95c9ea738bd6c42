"""The quality study of systems: every way runs at a tenth of the full cache, on the same texts."""

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from kvferry.backends.live.quality.tasks import texts
from kvferry.model.models import load_model
from kvferry.model.prompts import Prompts

pytestmark = pytest.mark.torch

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(STUDIES))
    return importlib.import_module("quality")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "words.txt"
    file.write_text(" ".join(f"word {n} of {n * n}" for n in np.random.default_rng(3).permutation(3000)))
    return file


def test_every_way_runs_at_a_tenth_and_says_what_it_hangs_on(
    study: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "quality.py systems --model byte-small --dtype bfloat16 --context 512 --selected 16 --said 5"
    ways = "--share 0.1 --texts 1 --needles 0 --ways kvswap quest chance shadowkv G=32"
    monkeypatch.setattr(sys, "argv", [*command.split(), *ways.split(), f"--text={text}", f"--output={tmp_path}"])
    study.main()
    found = json.loads((tmp_path / "systems_quality.json").read_text())
    rows = {name.partition(",")[0]: row for name, row in found["ways"].items()}
    assert all(0 <= rows[name]["agree"] <= 1 for name in ("kvswap", "quest", "chance"))
    # One group of 32 tokens is more than 16.
    assert rows["shadowkv"].keys() == {"does not fit"} or rows["shadowkv"]["tokens"] >= 16
    settings = found["settings"]
    assert (settings["dtype"], settings["threads"], settings["text"]) == ("bfloat16", 1, "words.txt")
    assert len(settings["text_sha256"]) == 64


def test_contexts_do_not_depend_on_how_much_is_said(text: Path) -> None:
    prompts = Prompts(Path(load_model("byte-small", "float32").config.name_or_path), 260, text, 0)
    few, many = ([one.context for one in texts(prompts, 100, 3, said)] for said in (64, 128))
    assert few == many


def test_what_does_not_fit_is_a_row(study: Any, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model("byte-small", "bfloat16")
    prompts = Prompts(Path(model.config.name_or_path), model.config.vocab_size, text, 0)
    asked = Namespace(context=256, selected=[64], share=0.001, texts=1, said=5, needles=0, ways=["kvswap"])
    rows = study.STUDIES["systems"].module.measure(asked, model, prompts)["ways"]
    assert "hold no selection" in rows["kvswap, 64 tokens"]["does not fit"]
    assert "does not fit: budget" in capsys.readouterr().out
