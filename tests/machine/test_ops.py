"""An op is registered once in each world, with what it costs and with what runs it; nothing else has to name it."""

import pytest

from kvferry.analysis.decoding import BLOCK_LABELS
from kvferry.machine.answers import Assigned, Selection
from kvferry.machine.ops import (
    OPS,
    Assign,
    Cluster,
    DecodeRun,
    Decompress,
    FeedForward,
    Op,
    Retrieve,
    RoutedExperts,
    Select,
    Split,
)
from kvferry.policies.decode.splits import Clustered, SplitParts
from kvferry.sim.costs.op_rules import RULES

# Not a processor's op: the modelled decompressor prices it, a live machine's decoder carries it out.
OF_THE_DECOMPRESSOR = {Decompress}
# A processor prices it by its steps.
PRICED_AS_OTHERS = {DecodeRun}


def test_every_op_has_a_price() -> None:
    assert set(OPS.values()) - OF_THE_DECOMPRESSOR - PRICED_AS_OTHERS == set(RULES)


def test_an_op_says_its_label_and_what_answers_it() -> None:
    assert all(op.label == label == op.__name__ for label, op in OPS.items())
    assert {op: op.answer for op in OPS.values() if op.answer} == {
        Select: Selection,
        Retrieve: Selection,
        Assign: Assigned,
        Cluster: Clustered,
        Split: SplitParts,
    }
    assert FeedForward.label in BLOCK_LABELS
    assert FeedForward(1).label == "FeedForward"
    assert all(issubclass(op, Op) and "__dict__" not in dir(op) for op in OPS.values())


@pytest.mark.torch
def test_every_op_is_run_by_a_live_runner() -> None:
    from kvferry.backends.live.assist.runner import AssistRunner
    from kvferry.backends.live.decoding.choices import Choices
    from kvferry.backends.live.decoding.cluster_ops import ClusterOps
    from kvferry.backends.live.decoding.hidden_state import HiddenState
    from kvferry.backends.live.decoding.layers import Layers
    from kvferry.backends.live.decoding.paged_layers import PagedLayers
    from kvferry.backends.live.loading.runner import SessionRunner

    runners = (Layers, HiddenState, Choices, ClusterOps, AssistRunner, PagedLayers, SessionRunner)
    run = {op for runner in runners for op in runner._methods}
    # Weights lie elsewhere in the modelled world alone.
    assert run == set(OPS.values()) - OF_THE_DECOMPRESSOR - {RoutedExperts}
