"""Conversations of a device without a cloud need no link."""

import pytest
from tiny import TURNS, changed

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.settings import settings_of
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import dump_scenario, dumped_scenario, load_scenario, scenario_hash
from kvferry.specs.errors import InputError

ALONE = {key: value for key, value in TURNS.items() if key != "link"} | {"system": "on-flash"}


def test_none_is_made_up() -> None:
    scenario = load_scenario(ALONE)
    assert scenario.session.workload.in_cloud == "nothing"
    assert "link" not in dump_scenario(scenario)
    assert not any(key.startswith("link.") for key in settings_of(scenario))
    again = dumped_scenario(dump_scenario(scenario))
    assert again == scenario and scenario_hash(again) == scenario_hash(scenario)


@pytest.mark.parametrize("system", ["on-flash", "in-memory", "three-way"])
def test_figures_are_those_beside_a_link_that_is_not_used(system: str) -> None:
    """Whose bound counts what it could have brought."""
    alone = changed(ALONE, system=system, policies={"keep": "memory-flash"})
    beside = changed(alone, link={"rate": "1 bit/s", "rtt": "1 s"}, workload={"in_cloud": "nothing"})
    found = [metrics_for(one, run_scenario(one)) for one in map(load_scenario, (alone, beside))]
    assert found[0]["requests"] == 4
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"policies": {"keep": "cloud"}}, "KV is kept in the cloud"),
        ({"workload": {"in_cloud": "contexts"}}, "contexts lie in the cloud"),
        ({"system": "three-way"}, "KV is kept in the cloud .*memory-flash would do"),
    ],
)
def test_what_needs_one_says_so(setting: dict[str, dict[str, str]], why: str) -> None:
    with pytest.raises(
        InputError, match=f"link: is missing, where {why}.*--set 'link={{rate: 100 Mbit/s, rtt: 20 ms}}'"
    ):
        load_scenario(changed(ALONE, **setting), check=names_in_use)
