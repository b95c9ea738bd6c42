"""How many tokens attention takes in: by hand, in every way that steps are carried out, and made equal."""

import numpy as np
import pytest
from tiny import DECODING, changed, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.quality import attending_to
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import dump_scenario, load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

GROUPS_OF_4 = changed(DECODING, policies={"group_tokens": 4, "selected_tokens": 80, "slots": 100})
IN_MEMORY = changed(DECODING, budget={"kv_share": None})


def figures(described: dict[str, object], **changes: object) -> dict[str, float]:
    scenario = tiny(described, **changes)
    return metrics_for(scenario, run_scenario(scenario))


@pytest.mark.parametrize(
    ("system", "described"), [("flexgen", DECODING), ("vllm", IN_MEMORY), ("os-paging", IN_MEMORY)]
)
def test_what_selects_nothing_attends_to_all(system: str, described: dict[str, object]) -> None:
    found = figures(described, system=system, policies={})
    # 1,024 tokens of the context and 1 to 11 new ones.
    assert found["attended_tokens"] == 1024 + 6
    assert (found["attended_share"], found["attention_mass"]) == (1.0, 1.0)
    assert "attention_mass_spread" not in found


def test_a_selection_and_the_newest_tokens_by_hand() -> None:
    found = figures(GROUPS_OF_4)
    # 20 groups of 4; of 1 to 11 new tokens those that fill no group yet, and the one under way: 1, 2, 3, 4, 1, ...
    newest = np.array([(new - 1) % 4 + 1 for new in range(1, 12)])
    assert found["attended_tokens"] == pytest.approx(80 + newest.mean())
    assert found["attended_share"] == pytest.approx((80 * 11 + newest.sum()) / (11 * 1030))


def test_recall_is_known_where_keys_are() -> None:
    """Every key by itself misses nothing, clusters of them some; of drawn selections nothing is known."""
    small = changed(DECODING, workload={"context": 512}, policies={"selected_share": 0.1})
    whole = figures(small, system="no-cluster")
    clusters = figures(small, system="pqcache", policies={"selected_share": 0.1, "group_tokens": 16})
    assert whole["recall_share"] == 1.0
    assert 0.3 < clusters["recall_share"] < 1.0
    assert "recall_share" not in figures(GROUPS_OF_4)


def test_an_output_of_which_a_part_is_decoded_has_the_mean_of_all() -> None:
    whole, part = (figures(DECODING, system="flexgen", workload={"output": 200, "decoded": n}) for n in (None, 40))
    assert part["attended_tokens"] == pytest.approx(whole["attended_tokens"], rel=1e-3)


def test_a_window_attends_to_what_it_keeps() -> None:
    found = figures(IN_MEMORY, system="streaming-llm", policies={"window_tokens": 60, "sink_tokens": 4})
    assert found["attended_tokens"] == 64
    assert found["attended_share"] == pytest.approx(64 / 1030)


@pytest.mark.parametrize(("compression", "known"), [(3.3, True), (4.0, True), (8.0, False)])
@pytest.mark.parametrize("system", ["infinigen", "infinigen-star-ru", "loki"])
def test_the_mass_of_narrower_keys_than_measured_is_not_known(system: str, compression: float, known: bool) -> None:
    """Measured by a quarter of each key; a small budget leaves less, and chooses worse."""
    policies = {"compression": compression, "selected_tokens": 80}
    found = figures(DECODING, system=system, policies=policies)
    assert found["attended_share"] < 1 and ("attention_mass" in found) == known


def test_both_rates_stand_beside_each_other() -> None:
    for measure in ("decode", "end_to_end"):
        found = figures(GROUPS_OF_4, measure=measure)
        assert found["throughput_tokens_per_s"] == found[f"{measure}_tokens_per_s"]
        assert found["decode_tokens_per_s"] == pytest.approx(2 / found["tpot_s"])
        took_s = found["ttft_s"] + 11 * found["tpot_s"]
        assert found["end_to_end_tokens_per_s"] == pytest.approx(2 * 12 / took_s, rel=1e-6)


def under(scenario: Scenario, name: str, tokens: int) -> Scenario:
    one = scenario.under(name)
    return attending_to(one, DECODE_SYSTEMS[name].with_policies(one.policy_values), tokens)


@pytest.mark.parametrize(
    ("system", "block", "newest"),
    [("kvswap", 4, 4), ("quest", 16, 16), ("loki", 1, 1), ("pqcache", 16, 16), ("no-cluster", 1, 1), ("vllm", 0, 0),
     ("streaming-llm", 0, 0)],
)  # fmt: skip
def test_every_selective_system_attends_to_as_many(system: str, block: int, newest: int) -> None:
    memory = IN_MEMORY if not block else DECODING
    scenario = under(tiny(memory, policies={"group_tokens": 4} if system == "kvswap" else {}), system, 128)
    found = metrics_for(scenario, run_scenario(scenario))
    if system == "vllm":
        assert found["attended_share"] == 1.0
    else:
        assert 128 <= found["attended_tokens"] <= 128 + 4 * block + newest
    # What is written can be run again.
    assert load_scenario(dump_scenario(scenario)).policy_values == scenario.policy_values


def test_what_a_file_says_goes_with_it() -> None:
    own = {"kvswap": {"selected_tokens": 40, "compression": 4, "selector": {"ahead": False}}}
    scenario = under(tiny(DECODING, system_policies=own), "kvswap", 128)
    assert scenario.policy_values == {
        "compression": 4,
        "selector": {"ahead": False, "selected_tokens": 128, "selected_share": None},
    }
    named = under(tiny(DECODING, policies={"selector": "page-bounds", "group_tokens": 16}), "kvswap", 64)
    assert named.policy_values["selector"] == {"name": "page-bounds", "selected_tokens": 64, "selected_share": None}


def test_sinks_alone_are_refused() -> None:
    with pytest.raises(InputError, match="4 tokens are no more than its 4 sink_tokens"):
        under(tiny(IN_MEMORY), "streaming-llm", 4)
