"""What a composition of roles says of itself."""

import pytest
from decoding import roles_of

from kvferry.policies.decode.blocking import TokenGroups, ValueGroups
from kvferry.policies.decode.elastic_slots import Elastic
from kvferry.policies.decode.residency import DoubleBuffer, Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.decode.selector import Everything, Selector

FITTED = LowRankKeys(compression="fit")


@pytest.mark.parametrize(
    ("parts", "fixed"),
    [
        ({"selector": LowRankKeys(), "residency": DoubleBuffer(), "layout": TokenGroups()}, True),
        ({"selector": LowRankKeys(), "residency": Elastic(), "layout": ValueGroups(compression=4)}, True),
        ({"selector": FITTED, "residency": DoubleBuffer(), "layout": TokenGroups()}, False),
        ({"selector": LowRankKeys(), "residency": Reuse(), "layout": TokenGroups()}, False),
        ({"selector": LowRankKeys(), "residency": DoubleBuffer(), "layout": ValueGroups()}, True),
        ({"selector": LowRankKeys(), "residency": DoubleBuffer(), "layout": ValueGroups(compression="fit")}, False),
    ],
)
def test_one_role_that_takes_what_the_budget_has_is_enough(parts: dict, fixed: bool) -> None:  # type: ignore[type-arg]
    assert Roles(**parts).fixed == fixed


def test_a_new_selector_writes_what_differs() -> None:
    """The base takes everything, asks nothing and keeps all."""
    base = Selector()
    assert (base.selected(4, 20), base.index(None, 0), base.fixed) == (None, None, True)  # type: ignore[arg-type]
    assert (base.wanted_tokens(7), base.kept_tokens(7), base.per_head, base.clusters) == (7, 7, False, False)
    assert base.stages(2, ()) == Everything().stages(2, ())
    assert Roles(selector=Everything()).selective is False and Roles(selector=FITTED).selective is True


@pytest.mark.parametrize("layout", [TokenGroups(), ValueGroups()])
def test_a_layer_is_computed_while_the_one_before_is_written(layout: TokenGroups | ValueGroups) -> None:
    stages = {stage.key: stage for stage in Roles(selector=FITTED, layout=layout).prefill(3)}
    for layer in (1, 2):
        (before,) = stages["prefill", layer].after
        assert before[0] != "write_out" and before[1] == layer - 1
        assert stages["write_out", layer].after == (("prefill", layer),)


def test_known_kv_comes_a_layer_ahead_and_never_three() -> None:
    order = [stage.key for stage in roles_of("vllm").prefill(4, known=True) if stage.kind in ("bring_known", "prefill")]
    brings = [("bring_known", n) for n in range(4)]
    computes = [("prefill", n) for n in range(4)]
    assert order == [*brings[:2], computes[0], brings[2], computes[1], brings[3], *computes[2:]]
