"""The commands of the documentation: what a page shows to be typed (`sh`) is run, in order and in one folder.

What needs another machine, a model or minutes (`console`) is at least a command with such options and scenario."""

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from kvferry.analysis.study import study_names
from kvferry.analysis.study_base import bundled_names
from kvferry.cli.main import app
from kvferry.scenarios.library import names

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
_BLOCK = re.compile(r"^```(?P<kind>\w*)(?P<rest>[^\n]*)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="(?P<name>[\w.-]+)"')


def blocks(page: str) -> Iterator[tuple[str, str | None, str]]:
    """The kind of each block of code, the file that it is, and its text."""
    for found in _BLOCK.finditer(PAGES[page]):
        titled = _TITLE.search(found["rest"])
        yield found["kind"], titled and titled["name"], found["body"]


def commands(body: str) -> Iterator[list[str]]:
    """Of the lines of a block those that call kvferry, without prompt and comment."""
    for line in body.splitlines():
        line = re.sub(r"^(\$ )?(KVFERRY_TOKEN=\S+ )?", "", line)
        if line.startswith("kvferry "):
            yield shlex.split(line, comments=True)[1:]


def _followed(page: str, folder: Path, call, monkeypatch: pytest.MonkeyPatch) -> int:  # type: ignore[no-untyped-def]
    """Does what a page says; returns how many commands that were."""
    monkeypatch.chdir(folder)
    done = 0
    for kind, title, body in blocks(page):
        if title is not None:
            Path(title).write_text(body)
        elif kind == "sh":
            for arguments in commands(body):
                code, out, err = call(*arguments)
                assert code == 0, f"{' '.join(arguments)}: {err}"
                assert out or err
                done += 1
        elif kind == "python" and page == "tutorial":
            Path("shown.py").write_text(body)
            runpy.run_path("shown.py")
    return done


def test_the_tutorial(tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    assert _followed("tutorial", tmp_path, call, monkeypatch) >= 8
    assert (tmp_path / "runs/lengths/plots/line-workload.context-ttft_s-system.png").is_file()


def test_the_notebook_is_a_page_with_all_that_it_shows() -> None:
    hook = runpy.run_path(str(DOCS.parent / "docs_site.py"))
    notebook = json.loads((DOCS / "notebook.ipynb").read_text())
    page = hook["notebook_page"](notebook)
    assert all("".join(cell["source"]) in page for cell in notebook["cells"])
    assert page.count("<img ") == sum(
        "image/png" in o.get("data", {}) for c in notebook["cells"] for o in c.get("outputs", [])
    )
    assert "first token" in page or "TTFT" in page


def _section(page: str, heading: str) -> str:
    return PAGES[page].split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_a_phone_is_calibrated_as_the_page_says(tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """With what llama-bench, fio and iperf3 wrote on some phone in place of the reader's."""
    given = DOCS.parent / "tests/data/calibrate"
    for name, source in {"llama-bench": "llama-bench", "fio-4k-1": "fio", "iperf3": "iperf3"}.items():
        (tmp_path / f"{name}.json").write_text((given / f"{source}.json").read_text())
    monkeypatch.setitem(PAGES, "a phone", _section("calibrate", "A phone"))
    monkeypatch.chdir(tmp_path)
    for _, title, body in blocks("a phone"):
        if title is not None:
            Path(title).write_text(body)
        for arguments in commands(body):
            code, _, err = call(*arguments)
            assert code == 0, f"{' '.join(arguments)}: {err}"
    assert (tmp_path / "runs/phone-loads-compared").is_dir()


RUN = [page for page in PAGES if page != "tutorial" and any(kind == "sh" for kind, _, _ in blocks(page))]


@pytest.mark.long
@pytest.mark.parametrize("page", RUN)
def test_what_other_pages_show(page: str, tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    if "live" in PAGES[page]:
        pytest.importorskip("torch")
    assert _followed(page, tmp_path, call, monkeypatch) > 0


SHOWN = [(page, arguments) for page in PAGES for _, _, body in blocks(page) for arguments in commands(body)]


@pytest.mark.parametrize(("page", "arguments"), SHOWN, ids=lambda one: one if isinstance(one, str) else " ".join(one))
def test_a_command_that_a_page_shows_is_one(page: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # A plugin is used while the command line is read; here it is a name.
    monkeypatch.setattr("kvferry.pipelines.plugins.use", lambda source: None)
    command = get_command(app)
    context = typer.Context(command)
    while hasattr(command, "get_command"):
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, f"docs/{page}.md: kvferry has no command {name}"
        command = found
    given = command.make_context(command.name, list(arguments), resilient_parsing=False).params
    named = given.get("scenario") or given.get("study") or given.get("search")
    # A sweep's folder is the reader's own.
    if isinstance(named, str) and not named.endswith(".yaml") and not given.get("point"):
        assert named in {*names("scenario"), *study_names(), *bundled_names("search")}, (
            f"docs/{page}.md: there is no {named}"
        )


_ITEM = re.compile(r"[^\n#\s-][^\n]*\n- ")


@pytest.mark.parametrize("page", PAGES)
def test_a_list_begins_after_an_empty_line(page: str) -> None:
    """Without one the site shows its dashes within the paragraph before it."""
    outside = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    paragraphs = [part for part in outside.split("\n\n") if not part.startswith(("- ", "#", "  "))]
    found = [match[0] for part in paragraphs for match in _ITEM.finditer(part)]
    assert not found, f"docs/{page}.md: {found[0]!r}"
