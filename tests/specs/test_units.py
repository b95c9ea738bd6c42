"""Physical values and counts: what is read, what is refused, and that a dump reads back exactly."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvferry.specs.base import Spec
from kvferry.specs.units import (
    _PLAIN,
    _PREFIXES,
    KINDS,
    Bytes,
    BytesPerS,
    Count,
    Requests,
    Seconds,
    Tokens,
    _parsed_factor,
    _plain_factor,
    quantity,
    with_unit,
)

FROM_FILE = {"from_file": True}


class Parcel(Spec):
    size_bytes: Bytes = 0.0
    rate_bytes_per_s: BytesPerS | None = None
    wait_s: Seconds = 0.0
    tokens: Tokens = 0
    requests: Requests = 0
    anything: Count = 0


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("4 ms", "time", 0.004),
        ("4ms", "time", 0.004),
        (" 1.5e2 us ", "time", 150e-6),
        ("10 µs", "time", 10e-6),
        ("2 min", "time", 120.0),
        ("24 KiB", "size", 24 * 1024.0),
        ("24 kB", "size", 24_000.0),
        ("8 Mbit", "size", 1e6),  # 8e6 bit / 8
        ("8 megabits", "size", 1e6),
        ("8 Mb/s", "rate", 1e6),  # of rates, a short b is usual
        ("850 Mbit/s", "rate", 106.25e6),  # 850e6 / 8
        ("850 Mbps", "rate", 106.25e6),
        ("1 GiB/s", "rate", 2.0**30),
        ("33 Tflop/s", "compute rate", 33e12),
        ("50 Mvalue/s", "value rate", 50e6),
        ("2.5 W", "power", 2.5),
        ("3 kJ", "energy", 3000.0),
        ("12 requests/min", "frequency", 0.2),
        ("0.2 /s", "frequency", 0.2),
        ("0.2 per s", "frequency", 0.2),
        ("-4 ms", "time", -0.004),  # the sign is for the bounds to refuse
    ],
)
def test_reads(text: str, kind: str, value: float) -> None:
    assert quantity(text, kind) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("4", "time", "'4' has no unit; write it like '4 ms'"),
        ("850 Mbit", "rate", "'850 Mbit' is a size, not a rate; write it like '850 Mbit/s'"),
        ("850 MHz", "rate", "'850 MHz' is a frequency, not a rate; write it like '850 Mbit/s'"),
        ("24 KB", "size", "'24 KB' has no unit of a size; did you mean '24 kB' or '24 KiB'?"),
        ("4 furlongs", "time", "'4 furlongs' has no unit of a time; write it like '4 ms'"),
        (
            "50 mbps",
            "rate",
            "'50 mbps' is in millibits, and there is no part of one; m is a thousandth, M a million: '50 Mbps'",
        ),
        (
            "50mb/s",
            "rate",
            "'50mb/s' is in millibits, and there is no part of one; m is a thousandth, M a million: '50 Mb/s'",
        ),
        (
            "20 mB",
            "size",
            "'20 mB' is in millibytes, and there is no part of one; m is a thousandth, M a million: '20 MB'",
        ),
        ("2 milliflop/s", "compute rate", "'2 milliflop/s' is in milliflops, and there is no part of one"),
        ("9 ub/s", "rate", "'9 ub/s' is in microbits, and there is no part of one"),
        ("50 MBit/s", "rate", "'50 MBit/s' has no unit of a rate; did you mean '50 Mbit/s'?"),
        ("50 mBit/s", "rate", "'50 mBit/s' has no unit of a rate; did you mean '50 Mbit/s'?"),
        ("50 MBps", "rate", "'50 MBps' has no unit of a rate; did you mean '50 MB/s'?"),
        (
            "50 mBps",
            "rate",
            "'50 mBps' is in millibytes, and there is no part of one; m is a thousandth, M a million: '50 MB/s'",
        ),
        ("3 gib", "size", "'3 gib' has no unit of a size; did you mean '3 GiB'?"),
        (
            "200 mb",
            "size",
            "'200 mb' is in millibits, and there is no part of one; m is a thousandth, M a million: '200 MB'",
        ),
        (
            "300 Mib",
            "size",
            "'300 Mib' is in bits: Mib is mebibits; '300 MiB' is 300 mebibytes, and '300 Mibit' says bits",
        ),
        (
            "8Gb",
            "size",
            "'8Gb' is in bits: Gb is gigabits; '8 GB' is 8 gigabytes, and '8 Gbit' says bits",
        ),
        (
            "3 gigab",
            "size",
            "'3 gigab' is in bits: gigab is gigabits; '3 gigabytes' is 3 gigabytes, and '3 gigabits' says bits",
        ),
        (
            "4096 b",
            "size",
            "'4096 b' is in bits: b is bits; '4096 B' is 4096 bytes, and '4096 bit' says bits",
        ),
        ("24 Kb", "size", "'24 Kb' has no unit of a size; did you mean '24 kB' or '24 KiB'?"),
        ("200 MBIT", "size", "'200 MBIT' has no unit of a size; did you mean '200 Mbit'?"),
        ("33 TFLOPS", "compute rate", "'33 TFLOPS' has no unit of a compute rate; did you mean '33 Tflop/s'?"),
        ("2.2 Ghz", "clock", "'2.2 Ghz' has no unit of a clock; did you mean '2.2 GHz'?"),
        ("4 sec", "time", "'4 sec' has no unit of a time; did you mean '4 s'?"),
        ("4 MSec", "time", "'4 MSec' has no unit of a time; did you mean '4 ms'?"),
        ("4 Ms", "time", "'4 Ms' is in megaseconds; M is a million, m a thousandth: '4 ms'"),
        ("4 ks", "time", "'4 ks' is in kiloseconds, which nobody means; write it in s"),
        ("4 mmin", "time", "'4 mmin' has a minute or an hour with a prefix, which nobody means; write it in s"),
        ("4 Mh", "time", "'4 Mh' has a minute or an hour with a prefix, which nobody means; write it in s"),
        ("4 Mbit/Ms", "rate", "'4 Mbit/Ms' is in megaseconds; M is a million, m a thousandth: '4 Mbit/ms'"),
        ("soon", "time", "'soon' is not a time; write it like '4 ms'"),
        ("", "time", "'' is not a time; write it like '4 ms'"),
        ("nan s", "time", "'nan s' is not a time; write it like '4 ms'"),
        ("inf s", "time", "'inf s' is not a time; write it like '4 ms'"),
        ("1e999 s", "time", "'1e999 s' is not finite; write it like '4 ms'"),
        ("9**9**9 s", "time", "'9**9**9 s' is not a time; write it like '4 ms'"),
        ("__import__('os') s", "time", "\"__import__('os') s\" is not a time; write it like '4 ms'"),
        ("1,000 ms", "time", "'1,000 ms' is not a time; write it like '4 ms'"),
        ("4 / /", "time", "'4 / /' has no unit of a time; write it like '4 ms'"),
        ("9" * 50 + " s", "time", f"'{'9' * 37}...' is not a time; write it like '4 ms'"),
    ],
)
def test_refuses(text: str, kind: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        quantity(text, kind)
    assert str(caught.value) == message


@given(st.text(max_size=60), st.sampled_from(sorted(KINDS)))
def test_any_text_is_a_number_or_a_value_error(text: str, kind: str) -> None:
    with suppress(ValueError):
        assert isinstance(quantity(text, kind), float)


@given(st.floats(min_value=0, max_value=1e7), st.sampled_from(sorted(KINDS)))
def test_what_is_written_reads_back_to_the_last_bit(number: float, kind: str) -> None:
    assert quantity(with_unit(number, kind), kind) == number


def test_written_short() -> None:
    assert with_unit(0.004, "time") == "0.004 s"
    assert with_unit(2.0**34, "size") == "17179869184 B"
    assert with_unit(0.1 + 0.2, "time") == "0.30000000000000004 s"


def test_python_gives_si_numbers_and_files_give_units() -> None:
    assert Parcel(wait_s=0.004) == Parcel.model_validate({"wait_s": "4 ms"}, context=FROM_FILE)
    with pytest.raises(ValidationError, match="0.004 has no unit; write it like '4 ms'"):
        Parcel.model_validate({"wait_s": 0.004}, context=FROM_FILE)
    with pytest.raises(ValidationError, match="true has no unit"):
        Parcel.model_validate({"wait_s": True}, context=FROM_FILE)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("wait_s", -0.004, "-0.004 is out of range: a time lies between 0 and 1e+07 s"),
        ("wait_s", "4e9 s", "'4e9 s' is out of range: a time lies between 0 and 1e+07 s"),
        ("wait_s", float("nan"), "nan is out of range: a time lies between 0 and 1e+07 s"),
        ("wait_s", [4], "[4] is not a time"),
        ("size_bytes", "-1 B", "'-1 B' is out of range: a size lies between 0 and 1e+16 B"),
        ("size_bytes", float("inf"), "inf is out of range: a size lies between 0 and 1e+16 B"),
        ("rate_bytes_per_s", "0 Mbit/s", "'0 Mbit/s' is out of range: a rate lies above 0 and up to 1e+14 B/s"),
        ("tokens", "32Ki requests", "'32Ki requests' is not a count; write it like 32768 or '32Ki tokens'"),
        ("requests", "5 tokens", "'5 tokens' is not a count; write it like 32768 or '32Ki requests'"),
        ("tokens", "1.3Ki", "'1.3Ki' is not a whole number"),
        ("tokens", 1.5, "1.5 is not a whole number"),
        ("tokens", float("nan"), "nan is not a whole number"),
        ("tokens", None, "null is not a count; write it like 32768 or '32Ki tokens', or leave the key out"),
        ("tokens", True, "True is not a count; write it like 32768 or '32Ki tokens'"),
        ("tokens", "4 ms", "'4 ms' is not a count; write it like 32768 or '32Ki tokens'"),
        ("tokens", "9" * 400, f"'{'9' * 40}' is not a count; write it like 32768 or '32Ki tokens'"),
        ("tokens", "-1", "'-1' is not a count; write it like 32768 or '32Ki tokens'"),
    ],
)
def test_a_field_says_what_is_wrong(field: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Parcel.model_validate({field: value})
    assert caught.value.errors()[0]["msg"] == f"Value error, {message}"


@pytest.mark.parametrize("written", [32768, 32768.0, "32768", "32Ki", "32 Ki tokens", "32Ki token"])
def test_the_same_count(written: object) -> None:
    assert Parcel.model_validate({"tokens": written}).tokens == 32768


def test_a_plain_count_takes_either_noun() -> None:
    assert Parcel.model_validate({"anything": "2k tokens"}).anything == 2000
    assert Parcel.model_validate({"anything": "1.5M requests"}).anything == 1_500_000
    with pytest.raises(ValidationError, match="is not a count"):
        Parcel.model_validate({"anything": "2k sheep"})


def test_units_that_are_read_without_pint_are_what_pint_says() -> None:
    texts = [(prefix + unit, kind) for kind, units in _PLAIN.items() for unit in units for prefix in _PREFIXES]
    by_pint = {(unit, kind): _parsed_factor(unit, kind) for unit, kind in texts}
    assert {(unit, kind): _plain_factor(unit, kind) for unit, kind in texts} == by_pint
    assert len(texts) > 150
    # What is no plain unit of its kind is left to pint, as is every refusal.
    for unit, kind in (
        ("B", "rate"),
        ("min", "time"),
        ("GB per s", "rate"),
        ("KB", "size"),
        ("MHz", "rate"),
        ("", "size"),
    ):
        assert _plain_factor(unit, kind) is None
