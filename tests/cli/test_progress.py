"""How much time is left, as progress says it, and lines where no bar can be drawn."""

from collections.abc import Iterator
from threading import Event
from threading import enumerate as threads

import pytest

from kvferry.cli import progress
from kvferry.cli.progress import Estimate, counted, in_turn, spinner


def test_the_rest_at_the_pace_so_far() -> None:
    now_s = 100.0
    estimate = Estimate(lambda: now_s)
    # 40 of 100 points were there already: they say nothing about the pace.
    assert estimate.in_words(40, 100) == ""
    now_s = 110.0
    # 20 points in 10 s: 40 more take 20 s
    assert estimate.in_words(60, 100) == "about 20 s left"
    assert estimate.in_words(100, 100) == ""


@pytest.mark.parametrize(
    ("took_s", "words"), [(0.001, "1 s"), (100, "100 s"), (150, "2 min"), (7200, "2 h"), (500_000, "6 days")]
)
def test_units_of_the_rest(took_s: float, words: str) -> None:
    now_s = 0.0
    estimate = Estimate(lambda: now_s)
    estimate.in_words(0, 2)
    now_s = took_s
    assert estimate.in_words(1, 2) == f"about {words} left"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], Event]]:
    """Lines as they are said, and what is set by each; time between them is nothing."""
    lines, came = list[str](), Event()

    def say(line: str) -> None:
        lines.append(line)
        came.set()

    monkeypatch.setattr(progress, "say", say)
    monkeypatch.setattr(progress, "LINE_AFTER_S", 1e-3)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 1e-3)
    yield lines, came
    assert not [one for one in threads() if one.name == "progress"], "a thread is left"


def test_without_a_terminal_a_line_says_that_work_goes_on(said: tuple[list[str], Event]) -> None:
    lines, came = said
    # Nothing calls while clusters are made, and yet something is said.
    with counted("mine: dynakv") as done:
        assert came.wait(10)
        assert lines[0] == "mine: dynakv: 0 s so far"
        done(12, 4096)
        while "12 of 4,096" not in lines[-1]:
            came.clear()
            assert came.wait(10)
    assert lines[-1].startswith("mine: dynakv: 12 of 4,096, 0 s so far")


def test_a_line_comes_at_least_every_fifteen_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Waits(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return len(waits) > 6

    monkeypatch.setattr(progress, "say", lambda line: None)
    monkeypatch.setattr(progress, "Event", Waits)
    with counted("long"):
        pass
    assert len(waits) == 7 and max(waits) <= 15.0 and min(waits) > 9.0


def test_what_is_counted_is_named(said: tuple[list[str], Event]) -> None:
    lines, came = said
    with counted("study", " points") as done:
        done(3, 9)
        while not lines or "3 of 9 points, 0 s so far" not in lines[-1]:
            came.clear()
            assert came.wait(10)
    with spinner("study: scheduling"):
        came.clear()
        assert came.wait(10)
    assert lines[-1] == "study: scheduling: 0 s so far"


def test_silence_lasts_from_one_work_to_the_next(
    said: tuple[list[str], Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, came = said
    now_s = 0.0
    monkeypatch.setattr(progress, "monotonic", lambda: now_s)
    monkeypatch.setattr(progress, "LINE_AFTER_S", 3600.0)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 3600.0)
    watch = in_turn(" runs")
    with watch("first") as done:
        done(1, 1)
    assert lines == []
    now_s = 3601.0
    # It has just begun, and yet nothing was said for an hour.
    with watch("second"):
        assert came.wait(10)
    assert lines == ["second: 0 s so far"]
    with watch("third"):
        pass
    assert len(lines) == 1


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with counted("quick") as done:
        done(1, 1)
    assert capsys.readouterr().err == ""
