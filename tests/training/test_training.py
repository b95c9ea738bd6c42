"""What the bundled models learn from: texts that may be learnt from, and tasks whose answers can be known."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

TRAINING = Path(__file__).parents[2] / "training"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"training_{name}", TRAINING / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


corpus, tasks = script("corpus"), script("tasks")


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_what_carries_a_notice_of_others_is_left_out(tmp_path: Path) -> None:
    stdlib = written(
        tmp_path / "Lib",
        {
            "plain.py": "x = 1\n",
            "foundation.py": "# Copyright (C) 2001-2023 Python Software Foundation\n",
            "contributed.py": "# Licensed to PSF under a Contributor Agreement.\n",
            "other.py": "# Copyright 1999 by Somebody Else\n",
            "mixed.py": "# Copyright Python Software Foundation\n# Permission is hereby granted ...\n",
            "logging/handlers.py": "x = 2\n",
            "test/data.py": "x = 3\n",
            "site-packages/vendored.py": "x = 4\n",
        },
    )
    found = corpus.corpus(stdlib, written(tmp_path / "Doc", {"library/re.rst.txt": "re\n==\n"}))
    kept = set(found.learnt_files) | set(found.held_out_files)
    assert kept == {"Lib/plain.py", "Lib/foundation.py", "Lib/contributed.py", "Doc/library/re.rst.txt"}
    assert len(found.left_out_files) == 5


def test_held_out_files_are_in_neither_half_by_chance(tmp_path: Path) -> None:
    stdlib = written(tmp_path, {f"module{n}.py": f"x = {n}\n" for n in range(400)})
    found, again = (corpus.corpus(stdlib, tmp_path / "none") for _ in range(2))
    assert found.held_out_files == again.held_out_files
    assert not set(found.learnt_files) & set(found.held_out_files)
    assert 8 <= len(found.held_out_files) <= 40  # a twentieth of 400, give or take
    assert found.held_out.tobytes().count(b"x = ") == len(found.held_out_files)


def test_what_bears_loss_was_said_before() -> None:
    random = np.random.default_rng(5)
    for make in (tasks.repeats, tasks.recall):
        for _ in range(20):
            ids, weights = make(random, 1500)
            assert ids.shape == weights.shape == (1500,)
            said = bytes(ids.astype(np.uint8))
            edges = np.flatnonzero(np.diff(np.r_[0, weights > 0, 0]))
            assert len(edges) > 2
            for begin, end in edges.reshape(-1, 2):
                # The last byte of a recalled answer is the template's end.
                assert said[begin : max(begin + 1, end - 2)] in said[: end - 1]


def test_every_question_can_be_answered_from_its_fact() -> None:
    for template in tasks.TEMPLATES:
        stated = template.fact % {b"key": b"abcd", b"value": b"1234"}
        asked = template.question % {b"key": b"abcd"} + b"1234" + template.end
        assert b"abcd" in stated and b"1234" in stated and b"abcd" in asked
        same = (stated + b"\n").startswith(asked)
        assert same == (template in tasks.SAME_WORDS), template.name


def test_needles_hold_text_at_half_weight() -> None:
    ids, weights = tasks.needles(np.random.default_rng(1), 2000, lambda length: b"." * length)
    text = ids == ord(".")
    assert set(np.unique(weights)) == {0.0, 0.5, 1.0}
    assert (weights == 0.5)[text].mean() > 0.8
    assert (weights == 1.0).any()


def test_a_line_in_text_ends_as_it_was_said_before() -> None:
    random, copied = np.random.default_rng(2), 0
    for _ in range(20):
        ids, weights = tasks.copies(random, 3000, lambda length: b"." * length)
        said = bytes(ids.astype(np.uint8))
        edges = np.flatnonzero(np.diff(np.r_[0, weights == 1.0, 0])).reshape(-1, 2)
        copied += len(edges)
        # Shown letters and the line's end together stand in the text; the last byte is the line's end.
        for begin, end in edges[:-1]:
            assert said[begin - 6 : end] in said[: end - 1]
    assert copied > 100


@pytest.mark.parametrize("name", ["repeats", "recall"])
def test_the_same_seed_draws_the_same(name: str) -> None:
    one, other = (getattr(tasks, name)(np.random.default_rng(4), 300)[0] for _ in range(2))
    assert np.array_equal(one, other)
