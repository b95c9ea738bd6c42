"""Cells whose devices share the air, and whose chance is their own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from assisted import BY_HAND, CLOUD, columns, ran
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.pipelines.run import run_scenario
from kvferry.specs.assist import AssistSpec, ChurnSpec
from kvferry.specs.errors import InputError
from kvferry.traces.assisted import assisted_requests
from kvferry.traces.coverage import Coverage

# Enough instances for all at once.
MANY = {"cloud": {**CLOUD, "count": 60}}


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def test_two_devices_of_a_cell_share_its_air_and_one_of_another_has_its_own() -> None:
    # Devices 0 and 2 are in the first cell, 1 in the second. 4 kB up and 1,100 B down at 1 MB/s, half of it for two.
    workload = {"devices": 3, "cells": 2, "output": 1}
    got = columns(ran(system="cloud-only", machines=MANY, workload=workload))
    way_s = dict(zip(got["request"], np.array(got["answered_s"]) - got["cloud_prefill_s"], strict=True))
    # A round trip of 20 ms, and 5 ms of forwarding.
    assert way_s == pytest.approx({0: 0.025 + 2 * 0.0051, 1: 0.025 + 0.0051, 2: 0.025 + 2 * 0.0051})


def test_tokens_of_many_devices_wait_for_each_other() -> None:
    # 100 B each 10 ms are 10 kB/s for a device; the air of five carries 20 kB/s, so that 300 tokens take 7.5 s.
    machines = {"cloud": {**CLOUD, "count": 5}}
    link = {"rate": "1 MB/s", "rtt": "20 ms"}
    workload = {"devices": 5, "cells": 1, "output": 300, "prompt": 100}
    changes: dict[str, Any] = {"system": "cloud-only", "machines": machines, "workload": workload}
    wide = columns(ran(**changes, link=link))
    narrow = columns(ran(**changes, link={**link, "rate": "20 kB/s", "up": {"rate": "1 MB/s"}}))
    for got, seconds in ((wide, 299 * 0.010), (narrow, 5 * 299 * 100 / 20e3)):
        assert np.array(got["last_s"]) - got["first_s"] == pytest.approx([seconds] * 5, abs=0.3)


def test_jitter_of_cells_is_drawn_apart() -> None:
    link = {"rate": "1 MB/s", "rtt": "20 ms", "jitter": "30 ms"}
    got = columns(ran(system="cloud-only", machines=MANY, link=link, workload={"devices": 2, "cells": 2, "output": 1}))
    assert got["answered_s"][0] != pytest.approx(got["answered_s"][1], abs=1e-4)


def drawn(devices: int, cells: int, **more: Any) -> AssistSpec:
    arrivals = {"rate_hz": 0.01, "burstiness": 4.0}
    asked = {"prompt": 1000, "spread": 0.5, "scenes": 5, "arrivals": arrivals, "duration_s": 600.0, **more}
    return AssistSpec.model_validate({"kind": "assist", "devices": devices, "cells": cells, **asked})


def of_cell(workload: AssistSpec, cell: int) -> list[tuple[float, ...]]:
    """Its requests: when each comes, its device's number in the cell, and what it is."""
    assert workload.cells is not None
    one = assisted_requests(workload, seed=3)
    rows = zip(one.arrivals_s, one.devices, one.prompts, one.outputs, one.scenes, strict=True)
    return [(at, n // workload.cells, *rest) for at, n, *rest in rows if n % workload.cells == cell]


@pytest.mark.parametrize("more", [{}, {"duration_s": None, "requests": 90}, {"arrivals": None, "duration_s": None}])
def test_another_cell_or_a_device_in_another_cell_changes_nothing_in_the_first(more: dict[str, Any]) -> None:
    workload = drawn(40, 2, **more)
    another = drawn(60, 3, **more | ({"requests": 135} if "requests" in more else {}))
    # 41 devices: the last one is in the first cell.
    for cell in (0, 1):
        assert len(of_cell(workload, cell)) > 15
        assert of_cell(another, cell) == of_cell(workload, cell)
    assert of_cell(drawn(41, 2, **more), 1) == of_cell(workload, 1)
    first, second = (list(zip(*of_cell(workload, cell), strict=True)) for cell in (0, 1))
    # Lengths and scenes; arrivals where they are drawn.
    assert all(first[n] != second[n] for n in (2, 3, 4) + (0,) * bool(workload.arrivals))


def test_each_device_comes_and_goes_by_its_number_in_its_cell() -> None:
    churn = ChurnSpec(online_s=10.0, offline_s=5.0)
    two, three = Coverage(churn, 1, cells=2), Coverage(churn, 1, cells=3)
    # The second device of the second cell is number 3 of two cells, and number 4 of three.
    courses = [[one.of(device, time_s) for time_s in range(100)] for one, device in ((two, 3), (three, 4), (two, 4))]
    assert courses[0] == courses[1] != courses[2]


def test_what_a_cell_waits_for_stays_as_it_is_when_another_one_comes() -> None:
    found = []
    for cells in (2, 3):
        workload = {
            "devices": 10 * cells,
            "cells": cells,
            "arrivals": {"rate": "60 requests/hour"},
            "duration": "10 min",
            "spread": 0.5,
            "churn": {"online": "4 s", "offline": "4 s"},
        }
        link = {"rate": "40 kB/s", "rtt": "20 ms", "jitter": "30 ms"}
        whose = assisted_requests(tiny(changed(BY_HAND, workload=workload)).assist.workload, seed=0).devices % cells
        got = columns(ran(machines=MANY, link=link, workload=workload))
        first = [n for n, request in enumerate(got["request"]) if whose[int(request)] == 0]
        found.append([[got[name][n] for n in first] for name in ("arrival_s", "first_s", "last_s", "came", "lost")])
    assert found[0] == found[1]
    # Of some hundred requests a few are let down, as their devices go offline.
    assert len(found[0][0]) > 60
    assert sum(found[0][4]) > 3


def test_parts_of_the_cells_in_runs_of_their_own_are_what_one_run_of_all_has() -> None:
    link = {"rate": "40 kB/s", "rtt": "20 ms", "jitter": "30 ms"}

    def found(cells: int, first_cell: int) -> dict[int, bytes]:
        """What each cell's requests were, column by column, byte by byte."""
        workload = {
            "devices": 10 * cells,
            "cells": cells,
            "first_cell": first_cell,
            "arrivals": {"rate": "60 requests/hour"},
            "duration": "5 min",
            "spread": 0.5,
            "churn": {"online": "4 s", "offline": "4 s"},
        }
        spec = tiny(changed(BY_HAND, workload=workload)).assist.workload
        got = columns(ran(machines=MANY, link=link, workload=workload))
        whose = assisted_requests(spec, seed=0).devices[np.array(got["request"], int)]
        of = np.array([spec.cell_of(int(device)) for device in whose])
        names = sorted(got.keys() - {"request"})
        return {cell: np.array([got[name] for name in names])[:, of == cell].tobytes() for cell in set(of.tolist())}

    whole = found(4, 0)
    assert len(whole) == 4 and len(set(whole.values())) == 4
    assert found(2, 0) | found(2, 2) == whole


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"cells": 3, "devices": 2}, "workload.cells: 3 are more than the 2 devices"),
        ({"cells": 0}, "workload.cells: .* at least 1"),
        ({"cells": 1.5}, "workload.cells: "),
        ({"first_cell": 3}, "workload.first_cell: needs cells"),
        (
            {"cells": 1, "devices": 2, "networks": [{"share": 1.0, "link": {"rate": "1 MB/s"}}]},
            "workload.networks: give devices links of their own, which cells share",
        ),
        ({"cells": 1, "trace": __file__}, "workload.trace: holds requests of no cell"),
    ],
)
def test_cells_that_cannot_be_are_refused_in_a_line(workload: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        tiny(changed(BY_HAND, workload=workload))
    assert "\n" not in str(refused.value)


def test_cells_are_modelled_alone() -> None:
    with pytest.raises(InputError, match="workload.cells: is modelled alone"):
        run_scenario(tiny(changed(BY_HAND, backend="torch", workload={"cells": 1})))
