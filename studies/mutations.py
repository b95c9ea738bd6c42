"""How many small faults the tests notice: seeded mutations of what is simulated, laid out, decided and piped.

    nice python studies/mutations.py --count 300 --seed 1        # goes on where it was stopped
    python studies/mutations.py --again                          # those of LEFT again, by the tests of today
    python studies/mutations.py --report                         # what came of it so far

A mutation changes one expression of one file, in a copy of the tracked tree. Tests that import its module run first,
then those of its folder, then some of whole systems; the first failure ends it. A line of journal.jsonl says what
became of each; what was not caught stands in LEFT, docs/validation/data/mutations-left.csv, until a test catches it.
Left out: tests marked long.
"""

import argparse
import ast
import csv
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parent.parent
LEFT = ROOT / "docs" / "validation" / "data" / "mutations-left.csv"
ROOMS = ("sim", "layouts", "policies", "pipelines", "sessions")
# Tests of whole systems, in both worlds.
WHOLE = (
    "tests/backends/live/decoding/test_numbered_tokens.py",
    "tests/backends/live/decoding/test_every_system.py",
    "tests/pipelines/test_run.py",
    "tests/sessions/test_by_hand.py",
    "tests/contract",
)
# What tests import besides the project.
LIBRARIES = ("torch", "transformers", "pandas", "matplotlib.pyplot", "hypothesis", "pydantic", "simpy", "pint", "typer")
# Files that may import the mutated module.
_DIRECT = 10
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div)


def named(described: dict[str, Any]) -> str:
    return "{path}:{line}:{column} {old} -> {new}".format(**described)


@dataclass(frozen=True)
class Mutation:
    """``old`` becomes ``new`` at this place of a file; lines count from 1, columns are in bytes. ``text``: the line as
    it stands, by which the place is found again."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    old: str
    new: str
    text: str = ""

    @property
    def name(self) -> str:
        return named(asdict(self))

    def applied(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)
        first, last = lines[self.line - 1], lines[self.end_line - 1]
        changed = first[: self.column] + self.new.encode() + last[self.end_column :]
        return b"".join([*lines[: self.line - 1], changed, *lines[self.end_line :]]).decode()


def mutations_of(path: str, source: str) -> list[Mutation]:
    """All that can be made of a file: comparisons, terms and factors that are dropped, and/or, not, min/max, and small
    numbers one larger. Types, decorators and what only an error says are left as they are."""
    found, lines = [], [line.encode() for line in source.split("\n")]
    for node in _expressions(ast.parse(source)):
        if (new := _mutated(node)) is not None:
            place = node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
            text = lines[node.lineno - 1].decode().strip()
            found.append(Mutation(path, *place, _segment(lines, *place), new, text))
    return found


def _segment(lines: Sequence[bytes], line: int, column: int, end_line: int, end_column: int) -> str:
    """What stands there, on one line. ast.get_source_segment splits the whole source each time."""
    part = list(lines[line - 1 : end_line])
    part[-1] = part[-1][:end_column]
    part[0] = part[0][column:]
    return " ".join(b"\n".join(part).decode().split())


def _expressions(node: ast.AST) -> Iterator[Any]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr | ast.Assert) or not isinstance(child, ast.AST):
                continue
            yield child
            yield from _expressions(child)


def _mutated(node: ast.AST) -> str | None:
    """The expression in its place; None: it is left as it is."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other: ast.expr = ast.Compare(node.left, [_COMPARED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        other = node.operand
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        other = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
        other = ast.Call(ast.Name(_SWAPPED[node.func.id]), node.args, node.keywords)
    elif isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= 2:
        return str(node.value + 1)
    else:
        return None
    return f"({ast.unparse(ast.fix_missing_locations(other))})"


def drawn(count: int, seed: int) -> list[Mutation]:
    """This many mutations, each as likely as any other; a shorter list begins a longer one."""
    files = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    found = [one for path in files for one in mutations_of(path.relative_to(ROOT).as_posix(), path.read_text())]
    random.Random(seed).shuffle(found)
    return found[:count]


def found_again(known: dict[str, Any]) -> Mutation | None:
    """Returns a mutation of the journal where its line stands today, the nearest of equal ones; None: it is gone."""
    file = ROOT / known["path"]
    every = mutations_of(known["path"], file.read_text()) if file.exists() else []
    same = [one for one in every if all(getattr(one, of) == known[of] for of in ("old", "new", "text"))]
    apart = lambda one: (abs(one.line - known["line"]), abs(one.column - known["column"]))  # noqa: E731
    return min(same, key=apart, default=None)


def tests_for(path: str, tree: Path) -> list[list[str]]:
    """Turns of test files: the ones that import the module or bear its name, its folder's, and those of whole
    systems."""
    module, stem = "kvferry." + path.removesuffix(".py").replace("/", "."), Path(path).stem
    texts = {file: file.read_text() for file in sorted((tree / "tests").rglob("test_*.py"))}
    named = [file for file in texts if file.stem == f"test_{stem}"]
    importing = sorted(
        (file for file, text in texts.items() if f"{module} import" in text), key=lambda file: file.stat().st_size
    )
    direct = list(dict.fromkeys([*named, *importing]))[:_DIRECT]
    mirrored = tree / "tests" / Path(path).parent
    folder = [file for file in texts if mirrored in file.parents and file not in direct]
    whole = [tree / one for one in WHOLE if tree / one not in {*direct, *folder}]
    turns = [[str(file.relative_to(tree)) for file in turn] for turn in (direct, folder, whole)]
    return [turn for turn in turns if turn]


def copied(tree: Path) -> None:
    """A copy of the tracked files, in which ``kvferry`` is that copy wherever Python is started."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0")[:-1]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    for part in sorted(tree.iterdir()):
        if (part / "__init__.py").exists() and part.name != "kvferry":
            (tree / "kvferry" / part.name).symlink_to(part)


def run_tests(tree: Path, files: Sequence[str], limit_s: int, broken: Iterable[str] = ()) -> tuple[str, str]:
    """("caught", the first test that failed), ("passed", "") or ("too long", ""), without tests that are `broken`.
    `limit_s`: processor time that they may take."""
    command = ["-x", "-q", "-n", "0", "-m", "not long", "-p", "no:cacheprovider"]
    command += [*files, *(f"--deselect={one}" for one in broken)]
    with tempfile.TemporaryFile() as out:
        # Libraries are there already: importing them took half of a mutation's time.
        if not (child := os.fork()):
            _become_tests(tree, command, limit_s, out.fileno())
        status = _ended(child, 6 * limit_s)
        out.seek(0)
        said = out.read().decode(errors="replace")
    # A mutation may wait for ever, without any processor time.
    if status is None:
        return "caught", "waits for ever"
    if (code := os.waitstatus_to_exitcode(status)) < 0:
        return "too long", ""
    if code in (0, 5):
        return "passed", ""
    lines = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "caught", lines[0].split(" - ")[0].split(" ", 1)[1] if lines else said[-200:]


def _become_tests(tree: Path, command: Sequence[str], limit_s: int, out: int) -> NoReturn:
    """Runs tests of the copy in this process and ends it."""
    code = 1
    try:
        os.setsid()
        os.chdir(tree)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path[:] = [str(tree), *(one for one in sys.path if Path(one or ".").resolve() != Path(__file__).parent)]
        for name, module in list(sys.modules.items()):
            if (
                (file := getattr(module, "__file__", None))
                and Path(file).is_relative_to(ROOT)
                and "site-packages" not in file
            ):
                del sys.modules[name]
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        code = int(pytest.main(list(command)))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _ended(child: int, limit_s: int) -> int | None:
    """Returns the status that a process ended with; None: it was killed, with what it had started."""
    until_s, status = time.monotonic() + limit_s, None
    while status is None and time.monotonic() < until_s:
        ended, found = os.waitpid(child, os.WNOHANG)
        status = found if ended else None
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return status


class Judge:
    """Says what becomes of mutations in a copy of the tree. A test that fails without any does not count from then
    on."""

    def __init__(self, tree: Path, sound: Iterable[str], limit_s: int) -> None:
        """`sound`: tests that are known to pass; `limit_s`: processor time of one run of tests."""
        self._tree, self._limit_s = tree, limit_s
        self._sound, self._broken = set(sound), set[str]()

    def judged(self, mutation: Mutation) -> dict[str, str]:
        """The copy is as before afterwards."""
        too_long = False
        for files in tests_for(mutation.path, self._tree):
            while True:
                with changed(self._tree / mutation.path, mutation):
                    verdict, by = run_tests(self._tree, files, self._limit_s, sorted(self._broken))
                if verdict != "caught" or self._is_sound(by):
                    break
            if verdict == "caught":
                return {"verdict": "caught", "by": by}
            too_long |= verdict == "too long"
        return {"verdict": "too long" if too_long else "survived", "by": ""}

    def _is_sound(self, by: str) -> bool:
        """What failed passes without the mutation."""
        if by in self._sound or "::" not in by:
            return True
        if run_tests(self._tree, [by], self._limit_s)[0] == "caught":
            self._broken.add(by)
            return False
        self._sound.add(by)
        return True


@contextmanager
def changed(file: Path, mutation: Mutation) -> Iterator[None]:
    """The mutated file, for as long as the block lasts."""
    source = file.read_text()
    file.write_text(mutation.applied(source))
    try:
        yield
    finally:
        file.write_text(source)
        # Two sources of one length within a second look alike to Python.
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()


def read(file: Path) -> list[dict[str, Any]]:
    """Returns what became of each mutation, as was found last."""
    lines = file.read_text().splitlines() if file.exists() else []
    return list({one["name"]: one for one in map(json.loads, lines)}.values())


def read_left(file: Path) -> list[dict[str, Any]]:
    """Returns what was not caught so far, by whichever journal."""
    if not file.exists():
        return []
    with file.open(newline="") as rows:
        found: list[dict[str, Any]] = list(csv.DictReader(rows))
    numbers = [one.name for one in fields(Mutation) if one.type in (int, "int")]
    return [{**one, "name": named(one), **{key: int(one[key]) for key in numbers}} for one in found]


def write_left(file: Path, before: Iterable[dict[str, Any]], journal: Iterable[dict[str, Any]]) -> None:
    """Writes what was not caught `before` and is not since, by the journal, and what has come to it there."""
    every = {one["name"]: one for one in [*before, *journal]}
    left = [one for one in every.values() if one["verdict"] not in ("caught", "gone")]
    with file.open("w", newline="") as rows:
        writer = csv.DictWriter(rows, [one.name for one in fields(Mutation)] + ["verdict"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(sorted(left, key=lambda one: (one["path"], one["line"], one["column"])))


def report(journal: list[dict[str, Any]]) -> str:
    by_room: dict[str, Counter[str]] = {}
    for one in journal:
        by_room.setdefault(one["path"].split("/")[0], Counter())[one["verdict"]] += 1
    lines = ["| room | caught | survived | too long | gone |", "|---|---|---|---|---|"]
    whole: Counter[str] = sum(by_room.values(), Counter())
    for room, counts in [*sorted(by_room.items()), ("all", whole)]:
        lines.append(
            f"| {room} | {counts['caught']} | {counts['survived']} | {counts['too long']} | {counts['gone']} |"
        )
    lines.append(f"\n{whole['caught'] / max(1, whole.total()):.0%} of {whole.total()} are caught; not:\n")
    lines += [
        f"- `{one['path']}:{one['line']}` `{one['old']}` -> `{one['new']}`"
        for one in journal
        if one["verdict"] != "caught"
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="how many of them another process judges")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=int, default=300, help="processor time of one run of tests")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "mutations")
    parser.add_argument("--again", action="store_true", help="those that were not caught")
    parser.add_argument("--left", type=Path, default=LEFT, help="where those that are not caught are listed")
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    file = asked.output / "journal.jsonl"
    journal, left = read(file), read_left(asked.left)
    if asked.report:
        print(report(journal))
        return
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    for library in LIBRARIES:
        import_module(library)
    asked.output.mkdir(parents=True, exist_ok=True)
    copied(tree := asked.output.resolve() / "tree")
    judge = Judge(tree, {one["by"] for one in journal}, asked.limit_s)
    todo: list[tuple[dict[str, Any], Mutation | None]]
    if asked.again:
        todo = [(one, found_again(one)) for one in left]
    else:
        known, new = {one["name"] for one in journal}, drawn(asked.count, asked.seed)[asked.first :]
        todo = [({"name": one.name, **asdict(one)}, one) for one in new if one.name not in known]
    for n, (described, mutation) in enumerate(todo, 1):
        found = judge.judged(mutation) if mutation else {"verdict": "gone", "by": ""}
        with file.open("a") as lines:
            lines.write(json.dumps({**described, **found}) + "\n")
        write_left(asked.left, left, read(file))
        print(f"{n}/{len(todo)} {found['verdict']}: {described['name']} {found['by']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
