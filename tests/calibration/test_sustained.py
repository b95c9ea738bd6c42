"""A series of rates that is measured here: what a second is, what is written, and what is said of it."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvferry.api.calibration import sustained as measured_here
from kvferry.calibration import sustained as module
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.settings import Settings
from kvferry.calibration.sustained import Second, Sustained, decoder, hottest_c, seconds, sustained
from kvferry.cli.main import app
from kvferry.specs.errors import InputError

pytestmark = pytest.mark.torch

RIG = Rig(Settings(model="tiny", random_weights=True))


class Clock:
    """Goes on by what each step takes."""

    def __init__(self, *steps_s: float) -> None:
        self.now_s, self._steps_s = 100.0, iter(steps_s)

    def step(self) -> None:
        self.now_s += next(self._steps_s)

    def __call__(self) -> float:
        return self.now_s


def test_a_second_ends_with_the_first_token_behind_it() -> None:
    # Ends at 0.4, 0.8, 1.2; 1.6, 2.0; then one at 4.5, which stands for two seconds.
    clock = Clock(0.4, 0.4, 0.4, 0.4, 0.4, 2.5)
    found = list(seconds(clock.step, 4.0, clock, lambda: 41.0))
    assert [one.until_s for one in found] == [1, 2, 3, 4]
    assert [one.tokens_per_s for one in found] == pytest.approx([3 / 1.2, 2 / 0.8, 1 / 2.5, 1 / 2.5])
    assert {one.temperature_c for one in found} == {41.0}


def test_the_hottest_sensor_that_can_be_read(tmp_path: Path) -> None:
    assert hottest_c(tmp_path) is None
    for n, said in enumerate(("-273150", "200000", "", "41500\n", "38000")):
        zone = tmp_path / f"thermal_zone{n}"
        zone.mkdir()
        (zone / "temp").write_text(said)
        assert hottest_c(tmp_path) == (None if n < 3 else 41.5)


def series(*per_s: float, warm_c: float | None = None) -> Sustained:
    return Sustained(Path("x.csv"), tuple(Second(n + 1, one, warm_c) for n, one in enumerate(per_s)), False)


def test_what_is_said_of_a_series() -> None:
    # 90 at 7.5 s + 5 s x (100 - 90) / (100 - 60).
    slow = series(*[100.0] * 10, *[60.0] * 30, warm_c=44.4)
    assert slow.in_words == "100 tokens/s at the start, 60 at the end: throttled after 9 s; 44 to 44 C"
    even = series(*[100.0, 90.0] * 10)
    assert even.in_words == "96 tokens/s at the start, 94 at the end: did not throttle; no temperature to read"
    assert "too short" in series(*[100.0] * 14).in_words


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Real tokens on a clock of their own, ten a second; interrupted after so many seconds."""
    last = [0]

    def taken(step: Callable[[], None], lasting_s: float) -> Iterator[Second]:
        clock = Clock(*[0.1] * 10_000)

        def timed() -> None:
            step()
            clock.step()

        for one in seconds(timed, lasting_s, clock, lambda: None):
            yield one
            if one.until_s == last[0]:
                raise KeyboardInterrupt

    monkeypatch.setattr(module, "seconds", taken)
    monkeypatch.setattr(module, "_OUTPUT", 16)
    return lambda after_s: last.__setitem__(0, after_s)


def test_chats_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 19 tokens, with which the first token comes, and the others one by one."""
    monkeypatch.setattr(module, "_OUTPUT", 3)
    read: list[int] = []
    hook = RIG.model.register_forward_pre_hook(
        lambda model, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    step = decoder(RIG)
    for _ in range(7):
        step()
    hook.remove()
    assert read == [19, 1, 1, 19, 1, 1, 19]


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_series_is_a_new_file(tmp_path: Path, quick: Callable[[int], None]) -> None:
    # Two chats and a part of the third.
    found = sustained(RIG, tmp_path / "mine", 4.0)
    assert not found.interrupted
    assert [row["until_s"] for row in rows(found.path)] == [str(n) for n in range(1, 5)]
    assert rows(found.path)[3] == {"until_s": "4", "tokens_per_s": "10", "temperature_c": ""}
    assert sustained(RIG, tmp_path / "mine", 1.0).path.name == "sustained-2.csv"
    assert len(rows(found.path)) == 4


def test_ctrl_c_keeps_what_there_is(tmp_path: Path, quick: Callable[[int], None]) -> None:
    quick(3)
    words = ["calibrate", "--sustained", "1", "--model", "tiny", "--random-weights", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 130
    assert len(rows(tmp_path / "sustained.csv")) == 3
    assert "kept 3 s" in result.stderr
    assert str(tmp_path / "sustained.csv") in result.stdout.replace("\n", "")


def test_what_cannot_be_measured_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"-1 minutes; more than 0"):
        measured_here(-1, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        sustained(RIG, tmp_path / "file" / "folder", 1.0)
    result = CliRunner().invoke(app, ["calibrate", "--sustained", "1", "--quick", "--from", "x.json"])
    assert result.exit_code != 0
    assert "--from, --quick" in str(result.exception) + result.stderr
