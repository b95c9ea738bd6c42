"""Conditions: what they say by hand, and that no text is a fault of the reader."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.condition import ConditionFault, condition_of

POINT = {
    "system": "ferry",
    "model": "llama-3.2-1b",
    "workload.context": 32768,
    "workload.batch": 4,
    "link.rate": "100 Mbit/s",
    "link.rtt": "4 ms",
    "link.trace": None,
    "live.paced": True,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("workload.context <= 32Ki", True),
        ("workload.context < 32Ki tokens", False),
        ("link.rate == 0.1 Gbit/s", True),
        ("link.rate != 100 Mbit/s", False),
        ("link.rtt > 3999 us", True),
        ("link.rtt >= 0.004 s and link.rtt <= 4 ms", True),
        ("system == ferry", True),
        ("system in [kivi, ferry]", True),
        ("not system in [kivi, 'local-prefill']", True),
        ("model == llama-3.2-1b", True),
        ('model == "ferry"', False),
        ("live.paced == true", True),
        ("link.trace == null", True),
        ("link.trace != null", False),
        ("link.trace == wifi-campus or workload.batch == 4", True),
        ("workload.batch < workload.context", True),
        # and binds closer than or
        ("system == ferry or system == kivi and workload.batch > 9", True),
        ("(system == ferry or system == kivi) and workload.batch > 9", False),
        ("workload.batch<=4.5", True),
    ],
)
def test_what_holds(text: str, holds: bool) -> None:
    assert condition_of(text).holds(POINT.__getitem__) is holds


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_what_is_not_set_is_neither_below_nor_above(sign: str) -> None:
    assert not condition_of(f"link.trace {sign} 5").holds(POINT.__getitem__)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'nothing' stands where a key should"),
        ("system", "'nothing' stands behind system where <"),
        ("system = ferry", "'= ferry' means nothing here"),
        ("system == ferry kivi ==", "'==' is one too many"),
        ("(system == ferry", "'nothing' stands where ')' should"),
        ("system in ferry", "'ferry' stands where '[' should"),
        ("4 < workload.batch", "'4' stands where a key should"),
        ("__import__('os') == 1", "'(' stands behind __import__ where <"),
        ("(" * 50 + "system == ferry", "is nested more than 20 deep"),
        ("system == " + "x" * 1000, "is longer than 1,000 characters"),
        ("link.rtt < 5", "link.rtt is a time, and is compared with a whole number"),
        ("link.rtt == 5 Mbit/s", "link.rtt is a time, and is compared with a rate"),
        ("system < 5", "< compares numbers, and system is 'ferry'"),
        ("workload.batch < many", "< compares numbers, and the right side is 'many'"),
    ],
)
def test_what_is_no_condition(text: str, message: str) -> None:
    with pytest.raises(ConditionFault) as fault:
        condition_of(text).holds(POINT.__getitem__)
    assert message in str(fault.value)


WORDS = st.sampled_from(
    ["(", ")", "[", "]", ",", "and", "or", "not", "in", "<", "==", "'", "system", "4 ms", "x.y", "é"]
)


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=40))
def test_no_text_is_a_fault_of_the_reader(text: str) -> None:
    def value_of(key: str) -> Any:
        return POINT[key]

    with suppress(ConditionFault, LookupError):
        assert condition_of(text).holds(value_of) in (True, False)
