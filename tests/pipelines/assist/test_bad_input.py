"""What a scenario of devices and a cloud gets wrong is named with its key, what came, and what would do."""

import pytest
from assisted import BY_HAND, ran
from by_hand import SECONDS, by_hand
from tiny import changed, tiny

from kvferry.pipelines.checks import names_in_use
from kvferry.specs.errors import InputError


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            "assist={name: optimised, tokens: 0.5}",
            "assist.tokens: 0.5 is not a whole number, or auto",
        ),
        ("assist={name: optimised, tokens: -1}", "assist.tokens: -1: must be at least 1, or auto"),
        (
            "assist={name: optimised, tokens: many}",
            "assist.tokens: 'many' is not a whole number, or auto",
        ),
        ("assist={name: optimised, ratio: 2}", "assist.ratio: 2: must be at most 1, or auto"),
        ("assist={name: optimised, ratio: null}", "assist.ratio: null is not a number, or auto"),
        ("serving={name: slots, tpot: 0 s}", "serving.tpot: '0 s': must be above 0"),
        ("serving={name: slots, tpot: 5}", "serving.tpot: 5 has no unit"),
        ("serving={name: slots, chunk_tokens: 3}", "serving.chunk_tokens: 3: must be at least 16"),
        ("serving={name: slots, chunk: 3}", "serving.chunk: unknown key"),
    ],
)
def test_by_its_key(policy: str, says: str) -> None:
    try:
        scenario = tiny(changed(BY_HAND, costs="roofline"), f"policies.{policy}")
        found = [f"{'.'.join(map(str, fault.key))}: {fault.what}" for fault in names_in_use(scenario)]
    except InputError as error:
        found = [str(error)]
    assert len([line for line in found if f"policies.{says}" in line]) == 1, found
    assert "constrained" not in "".join(found)


def test_tables_by_which_work_takes_no_time_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a table of a quick calibration does that falls towards its end, where it is extrapolated."""
    monkeypatch.setitem(SECONDS, "gpu", (0.0, 20e-3))
    what = r"costs: the device's prefill of 250 tokens comes to 0 s by the profile's tables; kvferry calibrate without"
    with by_hand(), pytest.raises(InputError, match=what):
        ran("policies.assist={name: optimised, tokens: 5, ratio: 0.25}")
