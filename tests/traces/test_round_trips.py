"""Round trips that differ: recorded or drawn."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.specs.link import LinkSpec
from kvferry.traces.round_trips import RoundTrips, late_of, round_trips_of

PING = """PING one.example (192.0.2.1) 56(84) bytes of data.
64 bytes from 192.0.2.1: icmp_seq=1 ttl=57 time=12.0 ms
64 bytes from 192.0.2.1: icmp_seq=2 ttl=57 time=20 ms
Request timeout for icmp_seq 3
rtt min/avg/max/mdev = 12.0/16.0/20.0/4.0 ms
"""


def link(**more: object) -> LinkSpec:
    return LinkSpec.model_validate({"rate_bytes_per_s": 1e6, **more})


@pytest.mark.parametrize("text", ["12\n\n# a comment\n20.0\n", PING])
def test_a_recording_by_hand(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trips.txt"
    path.write_text(text)
    trips = round_trips_of(link(round_trips=str(path)))
    # The shortest is what all have; one way is longer by half of the rest.
    assert trips.least_s == pytest.approx(0.012)
    assert trips.ways_s is not None
    np.testing.assert_allclose(trips.ways_s, [0.0, 0.004])
    assert trips.most_s == pytest.approx(0.004)
    assert trips.mean_s == pytest.approx(0.016)
    drawn_s = trips.drawn_s(np.random.default_rng(1), 100)
    assert set(np.round(drawn_s, 6)) == {0.0, 0.004}


def test_jitter_is_one_way_and_anything_up_to_so_much() -> None:
    trips = round_trips_of(link(rtt_s=0.02, jitter_s=0.01))
    assert (trips.least_s, trips.most_s) == (0.02, 0.01)
    assert trips.mean_s == pytest.approx(0.03)
    drawn_s = trips.drawn_s(np.random.default_rng(1), 1000)
    assert 0 <= drawn_s.min() < 0.001
    assert 0.009 < drawn_s.max() <= 0.01


def test_each_machine_draws_from_a_stream_of_its_own_and_the_same_ones_again() -> None:
    of = link(jitter_s=0.01)
    found = {}
    for name in ("device", "device-1"):
        draws = [late_of(of, 7, name) for _ in range(2)]
        assert draws[0] is not None
        assert draws[1] is not None
        found[name] = draws[0](5).tolist()
        assert found[name] == draws[1](5).tolist()
    assert found["device"] != found["device-1"]
    assert late_of(link(rtt_s=0.02), 7, "device") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("12\nfast\n", "trips.txt:2: a round trip in milliseconds 'fast' is not a number"),
        ("\n", "holds no round trip"),
        ("-1\n", "trips.txt:1: "),
    ],
)
def test_what_a_recording_cannot_hold(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trips.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        round_trips_of(link(round_trips=str(path)))


def test_a_recording_stands_alone() -> None:
    with pytest.raises(ValueError, match="beside rtt or jitter"):
        link(round_trips="trips.txt", rtt_s=0.01)


def test_without_either_nothing_differs() -> None:
    assert round_trips_of(link()) == RoundTrips(0.0, 0.0) or round_trips_of(link()).most_s == 0.0
