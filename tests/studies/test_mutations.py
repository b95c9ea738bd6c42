"""Mutations of a source, by hand."""

import ast
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = '''\
"""A sum of 1 and 2."""


@cached(1)
def total(a: int = 5, b: "list[1]" = ()) -> "1 + 2":
    if a < 3 and not b:
        raise ValueError(f"{a + 1} is too few, {1 + 1}")
    return max(a * 2,
               a) + len(b)
'''


@pytest.fixture(scope="module")
def mutations() -> Any:
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "studies" / "mutations.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["mutations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_expression_changes_at_a_time(mutations: Any) -> None:
    found = mutations.mutations_of("sim/total.py", SOURCE)
    assert [(one.line, one.old, one.new) for one in found] == [
        (6, "a < 3 and not b", "(a < 3 or not b)"),
        (6, "a < 3", "(a <= 3)"),
        (6, "not b", "(b)"),
        (8, "max(a * 2, a) + len(b)", "(max(a * 2, a))"),
        (8, "max(a * 2, a)", "(min(a * 2, a))"),
        (8, "a * 2", "(a)"),
        (8, "2", "3"),
    ]
    for one in found:
        ast.parse(one.applied(SOURCE))
    assert found[4].applied(SOURCE).endswith("    return (min(a * 2, a)) + len(b)\n")


def test_they_are_drawn_alike_and_have_tests(mutations: Any) -> None:
    few, more = mutations.drawn(20, 3), mutations.drawn(30, 3)
    assert few == more[:20] and len({one.name for one in more}) == 30
    for one in few:
        ast.parse(one.applied((ROOT / one.path).read_text()))
    first = mutations.tests_for("layouts/pools.py", ROOT)[0]
    assert "tests/layouts/test_cluster_layouts.py" in first


def test_a_mutation_is_made_in_the_copy_that_tests_import(mutations: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    mutations.copied(tree)
    (tree / "tests" / "test_where.py").write_text("""\
import kvferry.layouts.layout as layout
from pathlib import Path


def test_where() -> None:
    assert Path(layout.__file__).resolve().is_relative_to(Path.cwd().resolve())
""")
    assert mutations.run_tests(tree, ["tests/test_where.py"], 60) == ("passed", "")
    one = mutations.Mutation("tests/test_where.py", 6, 11, 6, 79, "", "False")
    judge = mutations.Judge(tree, [], 60)
    with mutations.changed(tree / one.path, one):
        assert mutations.run_tests(tree, ["tests/test_where.py"], 60)[0] == "caught"
    # It passes without the mutation, so it counts.
    assert judge._is_sound("tests/test_where.py::test_where")


def test_the_report_counts_and_names(mutations: Any) -> None:
    one = {"path": "sim/link.py", "line": 3, "old": "a", "new": "b", "verdict": "survived"}
    said = mutations.report([one, {**one, "verdict": "caught"}])
    assert "| sim | 1 | 1 | 0 | 0 |" in said and "50% of 2" in said and "- `sim/link.py:3` `a` -> `b`" in said


def test_what_was_not_caught_is_found_again_where_its_line_stands_now(
    mutations: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    known = [{"name": one.name, **asdict(one)} for one in mutations.mutations_of("total.py", SOURCE)]
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(json.dumps({**known[1], "verdict": verdict}) + "\n" for verdict in ("survived", "gone")))
    assert mutations.read(journal) == [{**known[1], "verdict": "gone"}]
    # Two lines more before it, and one that is no longer as it was.
    (tmp_path / "total.py").write_text('"""Of\n\n' + SOURCE[3:].replace("not b:", "not  b:"))
    assert mutations.found_again(known[1]) is None
    (found,) = [mutations.found_again(one) for one in known if one["old"] == "max(a * 2, a)"]
    assert (found.line, found.new) == (10, "(min(a * 2, a))")
    assert mutations.found_again({**known[1], "path": "gone.py"}) is None


def test_what_is_not_caught_is_listed_until_it_is(mutations: Any, tmp_path: Path) -> None:
    one, other, third = (
        {"name": found.name, **asdict(found)} for found in mutations.mutations_of("sim/total.py", SOURCE)[:3]
    )
    file = tmp_path / "left.csv"
    assert mutations.read_left(file) == []
    mutations.write_left(file, [], [{**one, "verdict": "survived"}, {**other, "verdict": "caught"}])
    kept = mutations.read_left(file)
    assert kept == [{**one, "verdict": "survived"}]
    mutations.write_left(file, kept, [{**one, "verdict": "caught"}, {**third, "verdict": "too long"}])
    assert mutations.read_left(file) == [{**third, "verdict": "too long"}]
