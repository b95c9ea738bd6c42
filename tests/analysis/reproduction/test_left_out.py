"""Errors on devices that were left out: their quantiles, which of them speak of a processor, what intervals hold."""

from math import exp
from pathlib import Path
from statistics import median

import pytest

from kvferry.analysis.reproduction.left_out import (
    COLUMNS,
    LeftOutRate,
    Spread,
    coverage,
    held,
    known_spread,
    left_out,
    read_left_out,
    spread_of,
)
from kvferry.analysis.reproduction.measured_rates import measured_powers, measured_rates, named_by_case
from kvferry.specs.errors import InputError


def rate(device: str, error: float | None, case: str = "", also: str = "", **more: str) -> LeftOutRate:
    known = {"metric": "decode", "engine": "e", "kind": "gpu", "bound_by": "reading", "predicted_by": "reading"}
    return LeftOutRate.model_validate(
        {**known, "case": case or device, "device": device, "also_without": also, "log_error": error, **more}
    )


def test_of_nine_devices_the_eighth_size_holds_eight_of_ten() -> None:
    spread = Spread({str(n): [(-1) ** n * n / 10] for n in range(1, 10)}, "made up")
    assert spread.half_width() == pytest.approx(0.8)
    assert spread.half_width(0.4) == pytest.approx(0.4)
    assert spread.half_width(0.85) == pytest.approx(0.85)
    assert spread.half_width(0.99) == pytest.approx(0.9), "no further than the largest that was seen"


def test_a_device_weighs_the_same_whatever_number_of_rows_it_has() -> None:
    few = Spread({"a": [0.1], "b": [0.2], "c": [0.3], "d": [0.4]}, "")
    many = Spread({"a": [0.1] * 50, "b": [0.2], "c": [0.3], "d": [0.4]}, "")
    assert many.half_width() == pytest.approx(few.half_width()) == pytest.approx(0.4)
    assert (many.rows, few.rows) == (53, 4)


def test_the_nearest_rows_that_are_of_enough_devices_speak() -> None:
    own = [(rate(f"own{n}", 0.1, engine="mine"), 0.1) for n in range(3)]
    kind = [(rate(f"kind{n}", 0.2), 0.2) for n in range(1)]
    other = [(rate(f"cpu{n}", 0.3, kind="cpu"), 0.3) for n in range(2)]
    bound = [(rate("fixed", 0.5, bound_by="fixed costs"), 0.5)]
    everything = own + kind + other + bound

    def about(*args: str) -> str:
        found = spread_of(everything, *args)  # type: ignore[arg-type]
        return "none" if found is None else f"{found.about}: {len(found.by_device)}"

    assert about("mine", "gpu", "reading") == "decoding bound by reading, any engine on a gpu: 4"
    assert about("mine", "cpu", "reading") == "decoding bound by reading, any engine: 6"
    assert about("mine", "gpu", "fixed costs") == "decoding, any engine: 7"
    assert about("mine", "gpu", "prefill") == "none"
    everything.append((rate("own4", 0.1, engine="mine"), 0.1))
    assert about("mine", "gpu", "reading") == "decoding bound by reading, mine on a gpu: 4"


def test_coverage_counts_rows_in_intervals_that_have_not_seen_the_device() -> None:
    """Four devices are 0.1 off, a fifth 0.3: its interval is of the four, and theirs of it, too."""
    rates = [rate(name, 0.1) for name in "abcd"] + [rate("e", 0.3, "e1"), rate("e", -0.05, "e2")]
    by_device = {one["device"]: one for one in coverage(rates)}
    assert {one["of"] for one in by_device.values()} == {"decoding"}
    assert (by_device["e"]["rows"], by_device["e"]["inside"], by_device["e"]["without_interval"]) == (2, 1, 0)
    assert by_device["e"]["median_factor"] == pytest.approx(exp(0.1))
    assert all(by_device[name]["inside"] == 1 for name in "abcd")
    assert held(coverage(rates)) == "5 of 6 rates (83%) lie in intervals made without their device (decoding 5 of 6)"


def test_what_a_second_device_changes_is_left_out_as_well() -> None:
    """Without e, the fit is 0.5 off on a: so is the interval of e. Without a, no row is left that b could be fitted
    on: b says nothing of a."""
    rates = [rate(name, 0.1) for name in "abcde"] + [rate("a", 0.5, also="e"), rate("b", None, also="a")]
    rates += [rate("a", 0.2, "prefill", bound_by="prefill", predicted_by="prefill", metric="prefill")]
    decoding, prefill = coverage(rates)[:-1], coverage(rates)[-1]
    by_device = {one["device"]: one for one in decoding}
    assert by_device["e"]["median_factor"] == pytest.approx(exp(0.5))
    assert by_device["b"]["median_factor"] == pytest.approx(exp(0.1))
    # Of the three devices that are left: as wide as their largest error.
    assert (by_device["a"]["inside"], by_device["a"]["median_factor"]) == (1, pytest.approx(exp(0.1)))
    # No other device has rates of prefill.
    assert (prefill["of"], prefill["rows"], prefill["without_interval"]) == ("prefill", 1, 1)
    assert held(coverage(rates)).endswith("(decoding 5 of 5); 1 have none")


def test_of_too_few_devices_an_interval_is_as_wide_as_the_largest_error_and_says_what_it_holds() -> None:
    """Of three, the largest holds three of four: no share of more is asked for, however many rows they have."""
    spread = Spread({"a": [0.1, 0.2, 0.6], "b": [0.2] * 9, "c": [0.3]}, "made up")
    assert spread.half_width() == pytest.approx(0.6)
    assert spread.level == 0.75
    assert spread.told == {"of": "made up", "devices": 3, "rows": 13, "factor": pytest.approx(exp(0.6)), "level": 0.75}
    four = Spread({**spread.by_device, "d": [0.1]}, "made up")
    assert four.level == 0.8 and "level" not in four.told
    assert Spread({"a": [0.1]}, "").level == 0.5


def test_prefill_and_power_have_rates_of_their_own() -> None:
    everything = [(rate(name, 0.1), 0.1) for name in "abcd"]
    everything += [(rate("a", 0.5, bound_by="power", metric="power"), 0.5)]
    found = spread_of(everything, "e", "gpu", "power")
    assert found is not None and (found.about, found.by_device) == ("power while decoding", {"a": [0.5]})
    assert spread_of(everything, "e", "gpu", "prefill") is None
    decoding = spread_of(everything, "e", "gpu", "reading")
    assert decoding is not None and decoding.half_width() == pytest.approx(0.1)


def test_the_intervals_of_devices_left_out_hold_what_they_should() -> None:
    """Eight of ten, give or take one, of the rates that have an interval. Which devices fail is in the docs."""
    found = coverage(left_out())
    inside, told = sum(one["inside"] for one in found), sum(one["rows"] - one["without_interval"] for one in found)
    assert told == len([one for one in left_out() if not one.also_without])
    assert 0.7 <= inside / told <= 0.9


def test_what_unpacking_bounds_is_foretold_without_its_rates() -> None:
    """Instructions are counted: the one device that they bound is as far off as others, left out of the fit."""
    alone = [one for one in left_out() if one.device == "gtx-1050-ti" and not one.also_without]
    errors = [abs(one.log_error) for one in alone if one.log_error is not None]
    assert len(errors) == 9 and median(errors) < 0.05
    assert {one.predicted_by for one in alone} == {"arithmetic"}


def test_every_rate_that_can_be_left_out_is_kept() -> None:
    """Another row of rates.csv asks for `python fits/left_out.py`."""
    named = {
        (metric, case): one
        for metric in ("decode", "prefill", "first_token")
        for case, one in named_by_case(one for one in measured_rates() if one.metric == metric).items()
    }
    kept = {one.row: one for one in left_out() if not one.also_without and one.metric != "power"}
    assert {one.case for one in left_out() if one.metric == "power"} == {one.case for one in measured_powers()}
    assert kept.keys() <= named.keys()
    by_engine: dict[tuple[str, str], set[str]] = {}
    for (metric, _), one in named.items():
        if metric == "decode" and one.fitted:
            by_engine.setdefault((one.engine, metric), set()).add(one.device)
    missing = [key for key in named if key not in kept]
    assert all(key[0] == "decode" and len(by_engine[named[key].engine, "decode"]) == 1 for key in missing), missing


def test_what_is_known_of_a_processor() -> None:
    gpu = known_spread("llama.cpp", "gpu", "reading")
    assert gpu is not None and gpu.about == "decoding bound by reading, any engine on a gpu"
    assert 0.1 < gpu.half_width() < 0.3
    prefill = known_spread("llama.cpp", "gpu", "prefill")
    assert prefill is not None and (prefill.about, prefill.level) == ("prefill, any engine", 0.8)
    power = known_spread("llama.cpp", "gpu", "power")
    assert power is not None and (power.about, power.level) == ("power while decoding", 0.75)


def test_a_row_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "left_out.csv"
    path.write_text(",".join(COLUMNS) + "\ndecode,c,d,e,tpu,reading,reading,,0.1\n")
    with pytest.raises(InputError, match=r"left_out\.csv:2: no rate of a device that was left out"):
        read_left_out(path)
