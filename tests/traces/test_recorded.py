"""The importers over every recorded trace, against the figures published with them; needs KVFERRY_TRACES."""

import csv
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from kvferry.traces.catalogue import FOLDER_VARIABLE, catalogue, path_of, recorded_trace
from kvferry.traces.importers import import_trace, reader_of
from kvferry.traces.logs import BYTES_PER_MBIT, Log

TABLE = Path(os.environ.get(FOLDER_VARIABLE, "")) / "stats.csv"
pytestmark = pytest.mark.skipif(
    not os.environ.get(FOLDER_VARIABLE) or not TABLE.is_file(),
    reason=f"{FOLDER_VARIABLE} names no folder with recorded traces and their table stats.csv",
)

# The table prints tenths of Mbit/s.
ROUNDING = 0.051
# Where our mean over time differs from the table's for a reason, and by how much at most (share of the mean).
DIFFERS = {
    # The table takes their stamps for ends of samples; a first stamp of 0 says beginnings.
    "solis-wifi/": 0.003,
    # The table leaves out the last second, which has no successor.
    "ucc-5g/": 0.0015,
    # A tenth of the seconds has no row; the table goes by rows, we by time.
    "umn-sigcomm21-5g/walking-1s/": 0.045,
    # Two stamps occur twice.
    "umn-sigcomm21-5g/Lumos5G-4G/": 0.001,
}


@lru_cache(maxsize=1)
def table():
    with TABLE.open() as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def in_catalogue():
    return {f"{source}/{entry.file}": name for name, (source, entry) in catalogue().items()}


def test_the_catalogue_has_every_file_of_the_table():
    assert sorted(in_catalogue()) == sorted(table())


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_the_import_has_the_published_mean(name):
    source, entry = catalogue()[name]
    row = table()[f"{source}/{entry.file}"]
    assert reader_of(Log.of(path_of(name))) == entry.reader
    trace = import_trace(path_of(name))
    mean = trace.mean() / BYTES_PER_MBIT
    slack = next((share for start, share in DIFFERS.items() if row["file"].startswith(start)), 0.0)
    assert mean == pytest.approx(float(row["time_weighted_mean"]), abs=ROUNDING + slack * mean)
    if entry.reader == "mahimahi":
        return
    # Sample by sample, whatever their spacing, the table and we read the same numbers.
    rates = trace.rates[:-1] if entry.reader == "ucc-5g" else trace.rates
    rates = rates / BYTES_PER_MBIT
    # One second of each walk has two rows, which the table counts twice.
    tolerance = ROUNDING + (0.002 if entry.reader == "iperf3-csv" else 0.0) * mean
    assert rates.mean() == pytest.approx(float(row["mean"]), abs=tolerance)
    assert rates.std() == pytest.approx(float(row["std"]), abs=tolerance)
    assert np.median(rates) == pytest.approx(float(row["median"]), abs=tolerance)
    assert rates.max() == pytest.approx(float(row["max"]), abs=tolerance)
    assert abs(len(rates) - int(row["samples"])) <= 1


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        # Idle ends trimmed.
        ("5g-midband-orange-spain-100mhz", 367, 170),
        ("5g-midband-vodafone-spain", 629, 206),
        ("5g-midband-orange-spain", 590, 191),
        # The first 3 s dropped.
        ("5g-azure-64332", 615, 19),
        ("5g-azure-64377", 910, 83),
        ("5g-azure-64388", 966, 128),
        ("5g-azure-64391", 757, 660),
        ("5g-azure-64408", 626, 189),
        ("5g-azure-64514", 1525, 113),
        ("5g-azure-64516", 1320, 147),
        ("5g-azure-64518", 959, 20),
        ("5g-azure-64522", 1768, 160),
        ("5g-azure-64546", 1975, 94),
        ("5g-azure-60262", 1865, 61),
    ],
)
def test_trimmed_and_without_slow_start(name, mean, std):
    rates = recorded_trace(name).rates / BYTES_PER_MBIT
    assert rates.mean() == pytest.approx(mean, abs=0.6)
    assert rates.std() == pytest.approx(std, abs=0.6)


def test_stalls_last_as_long_as_they_did():
    # rest-wifi/trace5 has a gap of 3.58 s between two stamps: one piece, at the rate of the row that ends it.
    trace = recorded_trace("zhuge-restaurant-wifi-5")
    longest = int(np.argmax(np.diff(trace.edges_s)))
    assert np.diff(trace.edges_s)[longest] == pytest.approx(3.579, abs=0.001)
    assert trace.rates[longest] / BYTES_PER_MBIT == pytest.approx(0.620096)
    assert trace.duration_s == pytest.approx(300.2, abs=0.05)


def test_mahimahi_delivers_a_packet_per_line():
    path = path_of("lte-tmobile-short")
    lines = path.read_text().split()
    trace = recorded_trace("lte-tmobile-short")
    assert trace.duration_s * 1000 == pytest.approx(int(lines[-1]))
    assert trace.amount(0, trace.duration_s) == pytest.approx(1500 * len(lines), rel=1e-12)
