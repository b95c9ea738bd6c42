"""Runs that differ only in what is drawn go by the same estimates; others never do."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tiny import ASSISTED

from kvferry.pipelines.assist.estimates import Estimates
from kvferry.pipelines.assist.roles import Roles
from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS
from kvferry.policies.assist.serving import Serving
from kvferry.scenarios.loader import load_scenario

MANY = "pd_device/many"


def roles(*settings: str) -> Roles:
    scenario = load_scenario(MANY, settings)
    return Roles(scenario, ASSIST_SYSTEMS[scenario.system])


def test_parts_of_many_cells_share_estimates() -> None:
    one = roles("workload.cells=4", "seed=1").estimates
    assert roles("workload.cells=4", "workload.first_cell=4", "seed=2").estimates is one


def test_whatever_estimates_go_by_makes_others() -> None:
    """Help is what it was when the first scenario comes again."""
    wanted = ASSIST_SYSTEMS["pd-device"].assist
    first = load_scenario(MANY)
    found = roles().estimates.help(8192, first.link, wanted)
    for setting in (
        "link.rtt=300 ms",
        "machines.prefill.device=jetson-agx-orin-sparkv",
        "workload.output=400",
        "policies.serving.slots=2",
        "device=jetson-agx-orin-sparkv",
    ):
        before, after = roles().estimates, roles(setting).estimates
        assert after is not before, setting
    assert roles().estimates.help(8192, first.link, wanted) == found


def test_what_a_file_says_itself_is_noted() -> None:
    """A share that a window cuts is worth a note where it was asked for, not where it is the default."""
    window = "device.processors.gpu.window_tokens=2000"
    default = load_scenario(ASSISTED, [window])
    asked = load_scenario(ASSISTED, [window, f"workload.least_ratio={default.assist.workload.least_ratio}"])
    assert asked == default
    notes = [
        Roles(one, ASSIST_SYSTEMS[one.system]).estimates.least_ratio_note(100_000) for one in (default, asked, default)
    ]
    assert [note is None for note in notes] == [True, False, True]


def test_a_trace_that_is_written_again_is_looked_at_again(tmp_path: Path) -> None:
    """A mask in a message of its own, and half as fast a link."""
    trace, sent_s = tmp_path / "mine.csv", list[float]()
    link = {"link": {"trace": str(trace), "rtt": "4 ms"}}
    for written, bytes_per_s in enumerate((2e6, 1e6)):
        head = "# kvferry-trace 1\n# kind: bandwidth\n# on_end: loop\nstart_s,bytes_per_s\n"
        trace.write_text(f"{head}0.0,{bytes_per_s}\n10.0,end\n")
        os.utime(trace, (written, written))
        scenario = load_scenario(ASSISTED | link)
        estimates = Roles(scenario, ASSIST_SYSTEMS[scenario.system]).estimates
        handling_s = scenario.assist.workload.handling.refine_token_s * 4096
        sent_s.append(estimates.mask_s(4096, 0.5) - handling_s)
    assert sent_s[1] == pytest.approx(2 * sent_s[0]) and sent_s[0] > 0


class Compared(Serving):
    """What is done by another thread while this is compared with an equal one."""

    meanwhile: ClassVar[Callable[[], object]] = lambda: None

    def __eq__(self, other: object) -> bool:
        type(self).meanwhile()
        return True

    __hash__ = Serving.__hash__


def test_a_thread_never_takes_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (load_scenario(MANY, [f"link.rtt={rtt}"]) for rtt in ("10 ms", "300 ms"))

    def made() -> Estimates:
        return Roles(near, replace(ASSIST_SYSTEMS[near.system], serving=Compared())).estimates

    before = made()
    monkeypatch.setattr(Compared, "meanwhile", lambda: Roles(far, ASSIST_SYSTEMS[far.system]))
    assert made() is before
