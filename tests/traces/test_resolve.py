"""From a scenario's words to a trace: names, files, scale, offset, outages."""

import numpy as np
import pytest
from pydantic import ValidationError
from tiny import LOADING, changed

from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.link import LinkSpec, LoadSpec, OutageSpec, WaySpec
from kvferry.traces.catalogue import FOLDER_VARIABLE
from kvferry.traces.format import StoredTrace, write_trace
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import BUNDLED, bandwidth_trace, drawn_link, link_trace, load_trace, stored_trace

# 100 B/s for 1 s, 200 B/s for 1 s.
STEPS = RateTrace.from_samples([100.0, 200.0], 1.0)


@pytest.fixture
def steps(tmp_path):
    path = tmp_path / "steps.csv"
    write_trace(path, StoredTrace("bandwidth", STEPS))
    return str(path)


def test_a_constant_link():
    assert link_trace(LinkSpec(rate_bytes_per_s=5e6)).amount(10, 20) == 5e7


def test_a_link_is_scaled_shifted_and_interrupted(steps):
    outage = OutageSpec(start_s=1.0, duration_s=0.5)
    link = link_trace(LinkSpec(trace=steps, scale=10.0, offset_s=1.0, outages=(outage,)))
    # From 1 s on: 2000, 1000, 2000 ... and nothing from 1 to 1.5.
    assert link.amount(0, 1) == 2000
    assert link.amount(1, 2) == 500
    assert link.amount(2, 4) == 3000
    assert link.amount(101, 102) == 1000


def test_the_scenario_says_what_follows_the_end(steps):
    assert link_trace(LinkSpec(trace=steps, on_end="hold")).amount(2, 4) == 400
    assert link_trace(LinkSpec(trace=steps, on_end="end")).amount(2, 4) == 0
    assert link_trace(LinkSpec(trace=steps)).amount(2, 4) == 300
    assert link_trace(LinkSpec(trace=steps, on_end="loop")).amount(2, 4) == 300
    # An offset beyond the end of a trace that ends: nothing is left.
    assert link_trace(LinkSpec(trace=steps, on_end="end", offset_s=5)).finish_s(0, 1) == float("inf")


@pytest.mark.parametrize(("on_end", "amount"), [("hold", 400), ("end", 0), ("loop", 300)])
def test_the_file_says_it_where_the_scenario_does_not(tmp_path, on_end, amount):
    path = tmp_path / "short.csv"
    write_trace(path, StoredTrace("bandwidth", RateTrace.from_samples([100, 200], 1.0, on_end)))
    assert link_trace(LinkSpec(trace=str(path))).amount(2, 4) == amount
    assert link_trace(LinkSpec(trace=str(path), on_end="loop")).amount(2, 4) == 300


def test_a_loaded_scenario_holds_what_the_file_says(tmp_path):
    path = tmp_path / "short.csv"
    write_trace(path, StoredTrace("bandwidth", RateTrace.from_samples([100, 200], 1.0, "hold")))
    link = {"trace": str(path), "up": {"trace": str(path)}}
    loaded = load_scenario(changed(LOADING, link={"rate": None, **link}))
    assert loaded.link.up is not None
    assert (loaded.link.on_end, loaded.link.up.on_end) == ("hold", "hold")
    assert load_scenario(changed(LOADING, link={"rate": None, **link, "on_end": "loop"})).link.on_end == "loop"
    assert load_scenario("sparkv/laptop").link.on_end == "loop"


def test_an_outage_beyond_what_can_be_unrolled_is_refused(tmp_path):
    path = tmp_path / "fine.csv"
    write_trace(path, StoredTrace("bandwidth", RateTrace.from_samples(np.ones(1000), 0.001)))
    outage = OutageSpec(start_s=5e6, duration_s=1.0)
    with pytest.raises(InputError, match="link: .* pieces"):
        link_trace(LinkSpec(trace=str(path), outages=(outage,)))


def test_a_load_is_a_share_of_a_processor():
    assert load_trace(LoadSpec(share=0.25)).rate_at(1e6) == 0.25
    bursty = load_trace(LoadSpec(trace="load-bursty"))
    assert 0 < bursty.mean() < 1
    assert bursty.rates.max() < 1


def test_bandwidth_and_load_are_not_mixed_up(steps):
    with pytest.raises(InputError, match="'load-bursty' is a load trace; a bandwidth trace is needed"):
        bandwidth_trace("load-bursty")
    with pytest.raises(InputError, match="is a bandwidth trace; a load trace is needed"):
        load_trace(LoadSpec(trace=steps))


def test_every_kind_of_file(tmp_path, steps):
    assert stored_trace(steps).trace.rates.tolist() == [100, 200]
    model = stored_trace(str(BUNDLED / "wifi-850.yaml"))
    assert model.trace.rates.tolist() == stored_trace("wifi-850").trace.rates.tolist()
    assert model.tags["seed"] == "1"
    raw = tmp_path / "raw.txt"
    raw.write_text("0 8\n1 16\n")
    assert bandwidth_trace(str(raw)).rates.tolist() == [1e6, 2e6]


def test_a_name_that_is_nothing_gets_the_nearest(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no trace is called 'wifi-campu'.*'wifi-campus'"):
        bandwidth_trace("wifi-campu")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match="kvferry traces fetch zhuge-4g-3"):
        bandwidth_trace("zhuge-4g-3")


def test_a_bundled_trace_is_made_once():
    assert bandwidth_trace("wifi-850") is bandwidth_trace("wifi-850")


def test_a_seed_draws_where_a_link_begins_and_which_realisation_it_has():
    link = LinkSpec(trace="wifi-campus", offset_s="random", instance="seed")
    drawn = [drawn_link(link, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    duration_s = bandwidth_trace("wifi-campus").duration_s
    assert all(0 <= one.begins_s < duration_s and one.drawn for one in drawn)
    # Other realisations of one model: as fast in the mean, at other times.
    rates = [link_trace(one).rates for one in drawn[1:]]
    assert not np.array_equal(rates[0][:100], rates[1][:100])
    assert link_trace(drawn[0]).mean() == pytest.approx(link_trace(drawn[2]).mean(), rel=0.2)
    # A course that is drawn does not hang on what else is.
    alone = drawn_link(LinkSpec(trace="wifi-campus", instance="seed"), 1)
    assert (alone.instance, alone.offset_s) == (drawn[0].instance, 0.0)
    assert drawn_link(alone, 7) is not link and drawn_link(alone, 7) == alone


def test_each_direction_has_a_course_of_its_own():
    way = WaySpec(trace="wifi-campus", offset_s="random")
    drawn = drawn_link(LinkSpec(trace="wifi-campus", offset_s="random", up=way), 3)
    assert drawn.up is not None
    assert drawn.begins_s != drawn.up.begins_s


def test_a_recording_has_one_course_and_a_constant_rate_none(steps):
    with pytest.raises(InputError, match=r"is recorded, and has one course alone; link\.offset: random"):
        drawn_link(LinkSpec(trace=steps, instance="seed"), 0)
    assert drawn_link(LinkSpec(trace=steps, offset_s="random"), 0).begins_s < 2
    for asked in ({"offset_s": "random"}, {"instance": "seed"}):
        with pytest.raises(ValidationError, match="a constant rate is the same at all times"):
            LinkSpec(rate_bytes_per_s=1.0, **asked)
