"""Tables with a header, as people have them: a time and a rate by the names of their columns."""

from pathlib import Path

import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.importers import import_trace


def imported(folder: Path, text: str) -> tuple[list[float], list[float]]:
    (folder / "log.csv").write_text(text)
    trace = import_trace(folder / "log.csv")
    return trace.edges_s.tolist(), (trace.rates * 8e-6).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "time,mbps\n0,8\n1,16\n2,4\n",
        "# from a drive\ntime_s,Throughput (Mbps),rtt_ms\n10,8,30\n11,16,31\n12,4,30\n",
        "timestamp_ms;dl_kbps\n0;8000\n1000;16000\n2000;4000\n",
        "seconds\tbits_per_second\n0\t8e6\n1\t16e6\n2\t4e6\n",
        "t,rate_bytes_per_s\n0,1e6\n1,2e6\n2,0.5e6\n",
        "time,link (MB/s)\n0,1\n1,2\n2,0.5\n",
        "timestamp,Mbit/s\n1700000000000,8\n1700000001000,16\n1700000002000,4\n",
        'time,mbps\n"2026-01-31T12:10:03",8\n"2026-01-31T12:10:04",16\n"2026-01-31T12:10:05",4\n',
    ],
)
def test_a_time_and_a_rate_by_their_names(tmp_path: Path, text: str) -> None:
    edges, mbit = imported(tmp_path, text)
    assert edges == pytest.approx([0, 1, 2, 3])
    assert mbit == pytest.approx([8, 16, 4])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,throughput\n0,8\n1,9\n", "0 columns are a rate with its unit; name them as in 'time_s,mbps'"),
        ("time,mb/s\n0,8\n1,9\n", "0 columns are a rate with its unit"),
        ("time,up_mbps,down_mbps\n0,8,8\n1,9,9\n", "2 columns are a rate with its unit"),
        ("when,mbps\n0,8\n1,9\n", "0 columns are a time"),
        ("time,mbps\n1,8\n0,9\n", "log.csv:3: time 0 does not come after"),
        ("time,mbps\n1,8\n2,fast\n", "log.csv:3: mbps 'fast' is not a number"),
        ("time,mbps\n1,8\n", "1 samples; their spacing needs two"),
        ("time,mbps\n1,8\n2\n", "log.csv:3: 1 columns, the header has 2"),
    ],
)
def test_what_is_not_such_a_table(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        imported(tmp_path, text)
    assert message in str(error.value)
