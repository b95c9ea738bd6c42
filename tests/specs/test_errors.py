"""What messages repeat of an input is shown, and never obeyed by a terminal."""

import json

import pytest

from kvferry.analysis.envelope import to_json
from kvferry.specs.errors import InputError, KvferryError, quoted

NASTY = "a\x1b[31mb\x07\x9b2Jc\rd\u202ee\u2028f\x7fg"


def test_control_characters_are_quoted() -> None:
    assert quoted(NASTY) == "a\\x1b[31mb\\x07\\x9b2Jc\\rd\\u202ee\\u2028f\\x7fg"
    assert quoted(quoted(NASTY)) == quoted(NASTY)
    assert quoted("half \ud83d a pair") == "half \\ud83d a pair"
    assert quoted("lines\nand\ttabs, é, 漢, \U0001f600") == "lines\nand\ttabs, é, 漢, \U0001f600"


@pytest.mark.parametrize("kind", [KvferryError, InputError])
def test_every_error_quotes_what_it_repeats(kind: type[KvferryError]) -> None:
    assert str(kind(f"x: {NASTY}")) == f"x: {quoted(NASTY)}"


def test_json_has_them_as_escapes() -> None:
    text = to_json({"name": NASTY})
    assert quoted(text) == text
    assert json.loads(text) == {"name": NASTY}


def test_the_command_shows_escapes_of_files(tmp_path, call) -> None:
    trace = "# kvferry-trace 1\n# kind: bandwidth\n# source: \x1b]0;owned\x07\nstart_s,bytes_per_s\n0.0,1.0\n1.0,end\n"
    (tmp_path / "t.csv").write_text(trace)
    (tmp_path / "m.yaml").write_text(
        'extends: tiny\nname: "\\e[31mred"\nsource: "from \\e]0;owned\\a"\n', encoding="utf-8"
    )
    (tmp_path / "d.yaml").write_text('extends: tiny\nsources: {"memory": "\\e[2J"}\n')
    for words in (["traces", "show", "t.csv"], ["models", "m.yaml"], ["devices", "d.yaml"], ["run", "\x1b[31m"]):
        *first, last = words
        place = tmp_path / last
        code, out, err = call(*first, str(place) if place.is_file() else last)
        assert code == (2 if first == ["run"] else 0), err
        assert "\\x1b" in out + err
        assert "\x1b" not in out + err
