"""The rooms are written in one place, and what is said of them holds."""

import ast
import re
import runpy
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from kvferry.policies.decode.roles import Roles

HERE = Path(__file__).parent.parent
LAID_OUT = runpy.run_path(str(HERE / "rooms.py"))
ROOMS = LAID_OUT["rooms"]()


def test_the_contract_on_imports_is_about_this_house() -> None:
    tools = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]
    assert tools["importlinter"]["root_packages"] == ["kvferry"]
    folders = {file.parent.name for file in HERE.glob("*/__init__.py")}
    assert folders - {"kvferry"} == set(ROOMS)


def test_tools_find_the_house_as_it_is_imported(tmp_path: Path) -> None:
    LAID_OUT["lay_out"](tmp_path / "typing")
    for package, folder in LAID_OUT["packages"]().items():
        laid_out = tmp_path.joinpath("typing", *package.split("."), "__init__.py")
        assert laid_out.samefile(HERE / folder / "__init__.py")
    assert (tmp_path / "typing/kvferry/py.typed").is_file()


@pytest.mark.parametrize("folder", [*ROOMS, "tests", "studies", "fits", "benchmarks", "training"])
def test_everything_is_imported_as_kvferry(folder: str) -> None:
    """A bare room would work from the repository's root alone."""
    bare = re.compile(rf"^\s*(?:from|import) ({'|'.join(ROOMS)})\b(?!\.py)", re.MULTILINE)
    found = {file: bare.search(file.read_text()) for file in (HERE / folder).rglob("*.py")}
    assert [str(file) for file, one in found.items() if one] == []


def test_the_picture_of_the_house_has_all_rooms() -> None:
    pytest.importorskip("matplotlib")
    assert runpy.run_path(str(HERE / "studies/house.py"))["ROOMS"] == list(reversed(ROOMS))


@pytest.mark.parametrize("room", ROOMS)
def test_each_folder_with_code_is_installed(room: str) -> None:
    folders = {file.parent.relative_to(HERE) for file in (HERE / room).rglob("*.py")}
    assert {folder.as_posix() for folder in folders} <= set(LAID_OUT["packages"]().values())


def test_no_room_has_more_than_15_percent_of_the_lines() -> None:
    lines = {room: sum(file.read_text().count("\n") for file in (HERE / room).rglob("*.py")) for room in ROOMS}
    assert {room: n for room, n in lines.items() if n > 0.15 * sum(lines.values())} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_is_longer_than_400_lines(room: str) -> None:
    assert [file for file in (HERE / room).rglob("*.py") if file.read_text().count("\n") > 400] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_each_place_that_a_page_on_the_code_names_is_there(page: str) -> None:
    """A place is text like `sim/link.py` or `policies/assist/`; a file without its folder lies somewhere in a room.
    Capitals stand for names of one's own."""
    named = re.findall(r"`([\w./-]+(?:\.py|\.yaml|\.csv|\.cfg|/))`", (HERE / page).read_text())
    files = {file.name for room in ROOMS for file in (HERE / room).rglob("*") if file.is_file()}
    assert len(named) > 20
    for place in (each for each in named if not re.search("NAME|PAPER|KIND", each)):
        beside = any((HERE / room / place).exists() for room in ("", *ROOMS))
        assert beside or ("/" not in place and place in files), place


def test_the_figure_of_the_roles_has_all_roles() -> None:
    pytest.importorskip("matplotlib")
    drawn = runpy.run_path(str(HERE / "studies/architecture.py"))
    assert list(drawn["DECIDES"]) == [field.name for field in fields(Roles)]


def members_of(protocol: ast.ClassDef, protocols: Mapping[str, ast.ClassDef]) -> set[str]:
    """Returns the names that a class has to have, those of the protocols that it builds on among them."""
    own = {one.name for one in protocol.body if isinstance(one, ast.FunctionDef)}
    own |= {
        one.target.id for one in protocol.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    bases = (base.id for base in protocol.bases if isinstance(base, ast.Name))
    return own.union(*(members_of(protocols[base], protocols) for base in bases if base in protocols))


def protocols_in(text: str) -> dict[str, ast.ClassDef]:
    """Returns the protocols that a file declares, generic ones among them, by name."""
    classes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.ClassDef)]
    return {one.name: one for one in classes if any(ast.unparse(base).startswith("Protocol") for base in one.bases)}


@pytest.mark.parametrize("folder", ["pipelines/decoding", "policies/decode", "backends/live/decoding"])
def test_docstrings_and_comments_of_decoding_do_not_begin_with_a_question(folder: str) -> None:
    begins = re.compile(r'^\s*("{3}|# )(Of|What|How|Where|Which|As|That|So many) ')
    lines = [line for file in (HERE / folder).rglob("*.py") for line in file.read_text().splitlines()]
    assert len(lines) > 1000 and [line for line in lines if begins.match(line)] == []


def test_no_protocol_has_more_than_eight_members() -> None:
    found = {file: protocols_in(file.read_text()) for room in ROOMS for file in (HERE / room).rglob("*.py")}
    known = {name: one for declared in found.values() for name, one in declared.items()}
    assert "Machine" in known and members_of(known["KeysAhead"], known) > members_of(known["Ahead"], known)
    wide = [
        f"{file.relative_to(HERE)}: {name}, {len(members)} members"
        for file, declared in found.items()
        for name, one in declared.items()
        if len(members := members_of(one, known)) > 8
    ]
    assert wide == []


def test_the_architecture_page_lists_them_from_the_lowest_floor_up() -> None:
    page = (HERE / "docs" / "architecture.md").read_text()
    assert re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE) == ROOMS
