"""Commands through a flash device: by hand, then against queueing theory."""

import math
from typing import Any

import numpy as np
import pytest
from tiny import ROUND_FLASH as ROUND

from kvferry.sim.flash import Flash
from kvferry.sim.flash_curve import FlashCurve, random_rate
from kvferry.sim.flash_pages import FlashPages
from kvferry.specs.storage import FlashSpec

KIB = 1024


def spec(**changes: Any) -> FlashSpec:
    return ROUND.model_copy(update=changes)


def end_s(flash: Flash) -> float:
    found = flash.first_end_s()
    assert found is not None
    return found


def batch_s(flash: Flash, extents: list[tuple[int, int]], writes: bool = False) -> float:
    """Seconds for (offset, length) commands that are all there at once."""
    flash.feed(0, writes, [offset for offset, _ in extents], [length for _, length in extents], 0.0)
    return end_s(flash)


def device(spec: FlashSpec = ROUND, depth: int = 32, half_duplex: bool = False) -> Flash:
    return Flash(spec, depth, half_duplex)


def test_a_read_alone_takes_every_step_once() -> None:
    # host 5, controller 2, die 50, channel 4, bus 2 us
    assert batch_s(device(), [(0, 4 * KIB)]) == pytest.approx(63e-6)


def test_of_a_small_read_a_whole_sector_leaves_the_die() -> None:
    # and 512 B the device: 0.25 us; it takes the detour of a partial sector
    assert batch_s(device(), [(0, 512)]) == pytest.approx((5 + 2 + 10 + 50 + 4 + 0.25) * 1e-6)


def test_a_read_across_two_pages_senses_two_dies_at_once() -> None:
    # 4 KiB on either side: dies and channels beside each other, the bus one after the other
    assert batch_s(device(), [(12 * KIB, 8 * KIB)]) == pytest.approx((5 + 2 + 50 + 4 + 2 + 2) * 1e-6)


def test_pages_of_one_die_are_sensed_one_after_the_other() -> None:
    # pages 0 and 4: the second leaves its die at 107 us
    assert batch_s(device(), [(0, 4 * KIB), (64 * KIB, 4 * KIB)]) == pytest.approx((5 + 2 + 100 + 4 + 2) * 1e-6)
    # pages 0 and 2 lie on two dies of one channel, which the second has to wait for; the controller is 2 us behind
    assert batch_s(device(), [(0, 16 * KIB), (32 * KIB, 16 * KIB)]) == pytest.approx((5 + 2 + 50 + 16 + 16 + 8) * 1e-6)


def test_no_more_commands_are_under_way_than_the_queue_holds() -> None:
    one_s = batch_s(device(), [(0, 4 * KIB)])
    extents = [(page * 16 * KIB, 4 * KIB) for page in range(4)]
    assert batch_s(device(depth=1), extents) == pytest.approx(4 * one_s)
    # four at once: the last is 6 us behind at the controller, and alone on its die and (4 us of 6) its channel
    assert batch_s(device(depth=4), extents) == pytest.approx(one_s + 6e-6)


def test_the_host_prepares_large_commands_longer() -> None:
    slow_host = spec(host_bytes_per_s=KIB / 1e-6)
    assert batch_s(device(slow_host), [(0, 4 * KIB)]) == pytest.approx(67e-6)


def test_a_write_takes_the_same_path_backwards() -> None:
    # bus 2, channel 4, a quarter of a page's 200 us
    assert batch_s(device(), [(0, 4 * KIB)], writes=True) == pytest.approx((5 + 2 + 2 + 4 + 50) * 1e-6)
    assert batch_s(device(spec(write_command_s=3e-6)), [(0, 4 * KIB)], writes=True) == pytest.approx(64e-6)


def test_a_write_has_ended_as_long_as_the_buffer_holds_it() -> None:
    buffered = device(spec(buffer_s=300e-6))
    assert batch_s(buffered, [(0, 16 * KIB)], writes=True) == pytest.approx((5 + 2 + 8) * 1e-6)
    # the third page on the same die is programmed from 431 to 631 us: 300 us before that it has ended
    extents = [(page * 64 * KIB, 16 * KIB) for page in range(3)]
    assert batch_s(device(spec(buffer_s=300e-6)), extents, writes=True) == pytest.approx((5 + 2 + 8 + 16 + 300) * 1e-6)


@pytest.mark.parametrize(("half_duplex", "write_s"), [(False, 24e-6), (True, 36e-6)])
def test_reads_and_writes_share_the_bus_of_a_half_duplex_device(half_duplex: bool, write_s: float) -> None:
    flash = device(spec(host_s=0.0, page_read_s=10e-6, page_program_s=1e-12), half_duplex=half_duplex)
    flash.feed(0, False, [0], [16 * KIB], 0.0)
    # Comes to the bus while the read is on it, from 26 (the work on the command is done there) or 28 us on.
    flash.advance(27e-6)
    flash.feed(1, True, [16 * KIB], [4 * KIB], 0.0)
    ends = {batch: at_s for at_s, batch, _ in flash.advance(1.0)}
    assert ends[0] == pytest.approx(36e-6)
    # alone 2 us of controller, 2 of bus, 4 of channel; the read holds a half-duplex bus until 36 us
    assert ends[1] == pytest.approx((27e-6 if not half_duplex else 36e-6) + 8e-6)


def test_long_commands_are_worked_through_in_groups_without_a_difference() -> None:
    # 64 pages per die fit in whole; 65 are taken in groups
    for bus_bytes_per_s, channel_bytes_per_s in ((1e9, 1e9), (1e9, 0.4e9)):
        slow = spec(bus_bytes_per_s=bus_bytes_per_s, channel_bytes_per_s=channel_bytes_per_s, page_read_s=20e-6)
        n_pages = 40 * 4 + 3
        whole_s = batch_s(device(slow), [(page * 16 * KIB, 16 * KIB) for page in range(n_pages)])
        long_s = batch_s(device(slow), [(0, n_pages * 16 * KIB)])
        assert long_s == pytest.approx(whole_s, rel=0.1)


@pytest.mark.parametrize("over", [1, 2, 3])
def test_of_a_long_command_each_page_is_sensed_once(over: int) -> None:
    slow = spec(page_read_s=20e-6)
    n_pages = 100 * 4 + over
    pieces = FlashPages(slow).of(0, n_pages * 16 * KIB, False)
    assert sum(die_s for _, die_s, *_ in pieces) == pytest.approx(n_pages * 20e-6)


def test_what_is_withdrawn_gives_way() -> None:
    flash = device(depth=1)
    flash.feed(0, False, [0, 16 * KIB, 32 * KIB], [4 * KIB] * 3, 0.0)
    flash.feed(1, False, [0], [4 * KIB], 0.0)
    assert flash.advance(100e-6) == []
    # One of 63 us has ended, the second is under way and ends at 126 us, the third never begins.
    assert flash.withdraw(0) == 4 * KIB
    assert flash.first_end_s() == pytest.approx(3 * 63e-6)
    assert [(batch, start_s) for _, batch, start_s in flash.advance(1.0)] == [(1, pytest.approx(126e-6))]
    assert flash.first_end_s() is None


def test_a_copy_goes_its_own_way() -> None:
    flash = device()
    flash.feed(0, False, [0], [4 * KIB], 0.0)
    copy = flash.copy()
    assert copy.advance(1.0) != []
    copy.check()
    assert flash.advance(62e-6) == []
    assert flash.advance(64e-6) != []


# --- theory ----------------------------------------------------------------------------------------------------------


def mean_wait_s(spec: FlashSpec, depth: int, rate_per_s: float, alone_s: float, commands: int = 20_000) -> float:
    """Mean time that 4 KiB reads which come at random times take more than alone; the first tenth is left out."""
    rng = np.random.default_rng(1)
    arrivals_s = np.cumsum(rng.exponential(1 / rate_per_s, commands)).tolist()
    pages = rng.integers(0, 1 << 20, commands).tolist()
    flash = Flash(spec, depth, half_duplex=False)
    ends_s = np.empty(commands)
    for number, (at_s, page) in enumerate(zip(arrivals_s, pages, strict=True)):
        for end_s, batch, _ in flash.advance(at_s):
            ends_s[batch] = end_s
        flash.feed(number, False, [page * 16 * KIB], [4 * KIB], 0.0)
    for end_s, batch, _ in flash.advance(math.inf):
        ends_s[batch] = end_s
    return float((ends_s - arrivals_s)[commands // 10 :].mean()) - alone_s


def mdc_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Exact mean wait of M/D/c: a service time later, those being served have gone, and who came meanwhile is there."""
    most = 120
    arrivals = np.exp(
        [n * np.log(rate_per_s * service_s) - rate_per_s * service_s - math.lgamma(n + 1) for n in range(most)]
    )
    there = np.zeros(most)
    there[0] = 1.0
    for _ in range(400):
        stay = np.append(there[: servers + 1].sum(), there[servers + 1 :])
        there = np.convolve(stay, arrivals)[:most]
        there /= there.sum()
    return float(there @ np.arange(most)) / rate_per_s - service_s


# All stations but the one that is looked at take next to no time.
NOTHING = {"host_s": 0.0, "command_s": 1e-12, "partial_s": 0.0, "page_read_s": 1e-12}
NOTHING |= {"channel_bytes_per_s": 1e14, "bus_bytes_per_s": 1e14}


@pytest.mark.parametrize(("places", "load"), [(1, 0.8), (4, 0.8), (8, 0.7)])
def test_places_in_the_queue_are_the_servers_of_an_mdc_queue(places: int, load: float) -> None:
    service_s = 100e-6
    rate_per_s = load * places / service_s
    expected_s = mdc_wait_s(rate_per_s, service_s, places)
    found_s = mean_wait_s(spec(**{**NOTHING, "host_s": service_s}), places, rate_per_s, service_s, commands=60_000)
    assert found_s == pytest.approx(expected_s, rel=0.08)


def test_the_exact_mdc_wait_is_the_known_one_for_a_single_server() -> None:
    assert mdc_wait_s(8000.0, 100e-6, 1) == pytest.approx(0.8 * 100e-6 / (2 * 0.2), rel=1e-4)


@pytest.mark.parametrize(
    "station",
    [
        {"command_s": 100e-6},
        {"channels": 1, "dies": 1, "page_read_s": 100e-6},
        {"channels": 1, "channel_bytes_per_s": 4 * KIB / 100e-6},
        {"bus_bytes_per_s": 4 * KIB / 100e-6},
    ],
    ids=["controller", "die", "channel", "bus"],
)
def test_every_station_is_an_md1_queue_by_itself(station: dict[str, float]) -> None:
    load = 0.7
    found_s = mean_wait_s(spec(**{**NOTHING, **station}), 10_000, load / 100e-6, 100e-6)
    assert found_s == pytest.approx(load * 100e-6 / (2 * (1 - load)), rel=0.08)


def test_random_pages_make_every_die_an_md1_queue() -> None:
    # Poisson arrivals, split at random over four dies, are Poisson at each of them.
    load = 0.7
    found_s = mean_wait_s(spec(**{**NOTHING, "page_read_s": 100e-6}), 10_000, 4 * load / 100e-6, 100e-6)
    assert found_s == pytest.approx(load * 100e-6 / (2 * (1 - load)), rel=0.08)


@pytest.mark.parametrize(
    ("block_bytes", "changes", "limit"),
    [
        (256 * KIB, {"page_read_s": 5e-6, "channel_bytes_per_s": 2e9}, 2 * KIB / 1e-6),  # the bus
        (4 * KIB, {"command_s": 40e-6}, 4 * KIB / 40e-6),  # the controller
        (16 * KIB, {"channel_bytes_per_s": 0.1 * KIB / 1e-6}, 2 * 0.1 * KIB / 1e-6),  # two channels
        (64 * KIB, {"page_read_s": 400e-6}, 4 * 16 * KIB / 400e-6),  # four dies, a page on each
    ],
    ids=["bus", "controller", "channels", "dies"],
)
def test_a_deep_queue_saturates_the_slowest_part(block_bytes: int, changes: dict[str, float], limit: float) -> None:
    rate = random_rate(spec(**changes), block_bytes, 64, half_duplex=False)
    assert rate == pytest.approx(limit, rel=0.02)
    assert rate <= limit * 1.005


def test_writes_at_a_deep_queue_keep_all_dies_at_work_by_arithmetic_too() -> None:
    # Four pages of 16 KiB, one on each die, are programmed in 400 us.
    slow = spec(page_program_s=400e-6, buffer_s=0.0)
    assert FlashCurve(slow, False, writes=True).command_s(np.array([64 * KIB]), 64)[0] == pytest.approx(
        400e-6, rel=0.02
    )


def test_a_write_that_the_buffer_takes_does_not_wait_for_its_page() -> None:
    slow = spec(page_program_s=400e-6)
    lone_s = [
        FlashCurve(slow.model_copy(update={"buffer_s": buffer_s}), False, writes=True).command_s(
            np.array([16 * KIB]), 1
        )[0]
        for buffer_s in (0.0, 1.0)
    ]
    # The buffer empties at the pace of four dies.
    assert lone_s[0] > 400e-6 and lone_s[1] < 200e-6


def test_half_duplex_halves_what_a_mixture_gets() -> None:
    def seconds(half_duplex: bool) -> float:
        quick = spec(page_read_s=1e-6, page_program_s=1e-6, command_s=0.0, channel_bytes_per_s=1e11)
        flash = device(quick, half_duplex=half_duplex)
        for batch in range(2):
            flash.feed(batch, batch == 1, [0], [64 << 20], 0.0)
        return max(at_s for at_s, _, _ in flash.advance(math.inf))

    assert seconds(True) / seconds(False) == pytest.approx(2.0, rel=0.02)


def test_littles_law_in_a_full_queue() -> None:
    # Sixteen places always taken: throughput times time in the device is sixteen.
    flash, places, rng = device(depth=16), 16, np.random.default_rng(2)
    for number in range(4000):
        flash.feed(number, False, [int(rng.integers(0, 1 << 20)) * 16 * KIB], [4 * KIB], 0.0)
    ended = flash.advance(math.inf)
    counted = ended[500:3500]
    throughput_per_s = len(counted) / (counted[-1][0] - counted[0][0])
    inside_s = np.mean([end_s - start_s for end_s, _, start_s in counted])
    assert throughput_per_s * inside_s == pytest.approx(places, rel=0.01)
