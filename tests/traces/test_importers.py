"""Importers on logs written by hand: the rates and times that each must give, and what it refuses."""

import json

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.importers import import_trace, reader_of
from kvferry.traces.logs import Log

# 8 Mbit/s are 1e6 bytes/s.
MB = 1e6


def log(tmp_path, text, name="log.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def imported(tmp_path, text, **settings):
    trace = import_trace(log(tmp_path, text), **settings)
    return [round(e, 9) for e in trace.edges_s.tolist()], trace.rates.tolist()


def test_stamps_from_zero_on_begin_samples(tmp_path):
    # Solis: the last sample lasts as long as usual, a second.
    edges, rates = imported(tmp_path, "0.0\t8\n1.0\t16\n2.01\t24\n3.0\t8\n4.0\t8\n")
    assert edges == [0, 1, 2.01, 3, 4, 5]
    assert rates == [MB, 2 * MB, 3 * MB, MB, MB]


def test_other_stamps_end_samples_so_that_a_stall_lasts(tmp_path):
    # Zhuge: stamps at a clock time, 0.2 s apart; between 100.6 and 104.6 nearly nothing came, which is the row at
    # 104.6 and holds for all of its 4 s.
    edges, rates = imported(tmp_path, "100.2 8\n100.4 16\n100.6 24\n104.6 0.08\n104.8 8\n105.0 8\n")
    assert edges == [0, 0.2, 0.4, 0.6, 4.6, 4.8, 5.0]
    assert rates == [MB, 2 * MB, 3 * MB, 0.01 * MB, MB, MB]


def test_rows_of_one_stamp_are_averaged_and_further_columns_ignored(tmp_path):
    edges, rates = imported(tmp_path, "0.000 8 14.0ms 0.00\n0.015 8 13.0ms 0.01\n0.015 24 1ms 0\n0.030 16 1ms 0\n")
    assert edges == [0, 0.015, 0.03, 0.045]
    assert rates == [MB, 2 * MB, 2 * MB]


def test_midband_has_a_row_per_tenth_of_a_second(tmp_path):
    assert imported(tmp_path, "Tput(Mbps)\tconfig\n8\tV\n16\tV\n") == ([0, 0.1, 0.2], [MB, 2 * MB])
    # Section 7: the first column counts rows of the modem's log and is no time.
    assert imported(tmp_path, "\tTput(Mbps)\tconfig\n145\t8\tD\n306\t16\tD\n") == ([0, 0.1, 0.2], [MB, 2 * MB])
    # Section 6 has a time.
    assert imported(tmp_path, "time(secs)\tTput(Mbps)\n1\t8\n2\t16\n") == ([0, 1, 2], [MB, 2 * MB])


IPERF = """run-1: Connecting to host x, port 5201
run-1: [ ID] Interval           Transfer     Bitrate         Retr  Cwnd
run-1: [  5]   0.00-1.00   sec   953 KBytes  8.00 Mbits/sec    0   1.54 MBytes
run-1: [  5]   1.00-2.00   sec  95.4 MBytes   0.8 Gbits/sec    0   1.54 MBytes
run-1: [  5]   2.00-3.00   sec  9.77 KBytes  80.0 Kbits/sec    0   1.54 MBytes
run-1: [  5]   3.00-4.00   sec  0.00 Bytes  0.00 bits/sec    0   1.54 MBytes
run-1: - - - - - - -
run-1: [  5]   0.00-4.00   sec  96.4 MBytes   202 Mbits/sec    0             sender
run-1: [  5]   0.00-4.04   sec  96.4 MBytes   200 Mbits/sec                  receiver
"""


def test_iperf3_text_in_every_unit(tmp_path):
    assert imported(tmp_path, IPERF) == ([0, 1, 2, 3, 4], [MB, 100 * MB, 0.01 * MB, 0])
    # Bytes are counted in powers of 1024.
    bytes_form = "[ 5] 0.00-1.00 sec 2.00 MBytes 2.00 MBytes/sec\n[ 5] 1.00-2.00 sec 1 MBytes 1.00 MBytes/sec\n"
    assert imported(tmp_path, bytes_form)[1] == pytest.approx([2 * 2**20, 2**20])


def test_iperf3_text_sums_streams_once(tmp_path):
    streams = (
        "[  5]   0.00-1.00   sec  1 MBytes  8.00 Mbits/sec\n"
        "[  7]   0.00-1.00   sec  2 MBytes  16.0 Mbits/sec\n"
        "[  5]   1.00-2.00   sec  1 MBytes  8.00 Mbits/sec (omitted)\n"
    )
    assert imported(tmp_path, streams)[1] == [3 * MB]
    assert imported(tmp_path, streams + "[SUM]   0.00-1.00   sec  3 MBytes  24.0 Mbits/sec\n")[1] == [3 * MB]


def iperf_json(**changes):
    intervals = [
        {"sum": {"start": 0, "end": 1.0005, "seconds": 1.0005, "bits_per_second": 8e6, "omitted": False}},
        {"sum": {"start": 1.0005, "end": 2, "seconds": 0.9995, "bits_per_second": 16e6, "omitted": False}},
    ]
    intervals[1]["sum"] |= changes
    return json.dumps({"start": {}, "intervals": intervals, "end": {}})


def test_iperf3_json(tmp_path):
    assert imported(tmp_path, iperf_json()) == ([0, 1.0005, 2], [MB, 2 * MB])
    assert imported(tmp_path, iperf_json(omitted=True)) == ([0, 1.0005], [MB])


def test_iperf3_csv_holds_through_missing_seconds(tmp_path):
    text = "run,_start,_end,Throughput\nx,0.0,1.0,8\nx,3.0,4.0,16\nx,4.0,5.0,24\nx,4.0,5.0,40\n"
    assert imported(tmp_path, text) == ([0, 3, 4, 5], [MB, 2 * MB, 4 * MB])


def test_ucc_averages_seconds_and_leaves_idle_out(tmp_path):
    rows = ["2020.01.16_12.10.03,8000,D", "2020.01.16_12.10.03,16000,D", "2020.01.16_12.10.04,0,I"]
    rows += ["2020.01.16_12.10.06,24000,D"]
    text = "Timestamp,DL_bitrate,State\n" + "\n".join(rows) + "\n"
    assert imported(tmp_path, text) == ([0, 3, 4], [1.5 * MB, 3 * MB])


def test_mahimahi_chances_are_1500_bytes_in_their_millisecond(tmp_path):
    # Two chances at 0 ms, one at 2 ms, and one at 4 ms that falls into the third, as the loop begins anew at 4 ms.
    trace = import_trace(log(tmp_path, "0\n0\n2\n4\n"))
    assert trace.duration_s == 0.004
    assert trace.amount(0, 0.004) == pytest.approx(4 * 1500)
    assert trace.amount(0, 0.001) == pytest.approx(2 * 1500)
    assert trace.amount(0.001, 0.002) == 0
    assert trace.amount(0.003, 0.004) == pytest.approx(1500)
    assert trace.finish_s(0, 400_000) == pytest.approx(0.004 * 66 + 0.0035, abs=0.001)


def test_slow_start_and_idle_ends_come_off(tmp_path):
    text = "\n".join(f"{n}.0 {8 * (n + 1)}" for n in range(10))
    assert imported(tmp_path, text, drop_slow_start=True)[1] == [n * MB for n in range(4, 11)]
    assert imported(tmp_path, text, trim_s=(2, 5))[1] == [3 * MB, 4 * MB, 5 * MB]
    assert imported(tmp_path, text, trim_s=(None, 5), drop_slow_start=True)[1] == [4 * MB, 5 * MB]
    for wrong in ({"trim_s": (5, 5)}, {"trim_s": (None, 11)}, {"trim_s": (9, None), "drop_slow_start": True}):
        with pytest.raises(InputError, match="nothing is left"):
            imported(tmp_path, text, **wrong)


@pytest.mark.parametrize(
    ("text", "reader"),
    [
        ("0.0 8\n1.0 8\n", "stamped"),
        ("  1\t8.5\n2 9\n", "stamped"),
        ("Tput(Mbps)\tconfig\n8\tV\n", "midband"),
        ("time(secs)\tTput(Mbps)\n1\t8\n", "stamped"),
        (IPERF, "iperf3-text"),
        ('{"intervals": []}', "iperf3-json"),
        ("a,_start,_end,Throughput\n", "iperf3-csv"),
        ("Timestamp,DL_bitrate,State\n", "ucc-5g"),
        ("0\n0\n12\n", "mahimahi"),
    ],
)
def test_the_reader_is_told_from_the_content(tmp_path, text, reader):
    assert reader_of(Log.of(log(tmp_path, text))) == reader


@pytest.mark.parametrize("text", ["", "hello\n", "# only a comment\n", "1,2,3\n", "\x00\x01"])
def test_unknown_content_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="choose one of"):
        import_trace(log(tmp_path, text))


@pytest.mark.parametrize(
    ("reader", "text", "where", "what"),
    [
        ("stamped", "0 8\n1 -8\n", ":2:", "'-8'"),
        ("stamped", "0 8\n1 nan\n", ":2:", "'nan'"),
        ("stamped", "0 8\n1 1e300\n", ":2:", "'1e300'"),
        ("stamped", "0 8\n1\n", ":2:", "second column"),
        ("stamped", "1 8\n0 8\n", ":2:", "comes before"),
        ("stamped", "0 8\n", "", "needs two"),
        ("stamped", "0 8\n1 8\n99999999 8\n", "", "at most"),
        ("midband", "Tput(Mbps)\n8\nfast\n", ":3:", "'fast'"),
        ("midband", "x\tTput(Mbps)\n8\n", ":2:", "1 columns"),
        ("midband", "rate\n8\n", ":1:", "no column"),
        ("midband", "Tput(Mbps)\n", "", "no samples"),
        ("iperf3-text", "[ 5] 0.00-1.00 sec 1 MBytes 9e9 Gbits/sec\n", "", "no interval"),
        ("iperf3-text", "[ 5] 0.00-1.00 sec 1 MBytes 9999999 Gbits/sec\n", ":1:", "rate in Mbit/s"),
        ("iperf3-text", "[ 5] 5.00-5.00 sec 1 MBytes 8 Mbits/sec\n", "", "ascend"),
        ("iperf3-json", "{", ":1:", "not JSON"),
        ("iperf3-json", "[]", "", "not a report"),
        ("iperf3-json", '{"intervals": []}', "", "not a report"),
        ("iperf3-json", '{"intervals": [{"sum": {"start": 0, "end": 1, "bits_per_second": "8"}}]}', "", "not a number"),
        ("iperf3-json", iperf_json(bits_per_second=-1), "", "interval 2"),
        ("iperf3-json", iperf_json(bits_per_second=float("nan")), "", "interval 2"),
        ("iperf3-json", iperf_json(start=0), "", "ascend"),
        ("iperf3-json", "[" * 100_000, "", "not a report"),
        ("iperf3-csv", "a,b\n1,2\n", ":1:", "no column '_start'"),
        ("iperf3-csv", "_start,_end,Throughput\n0,1\n", ":2:", "2 columns"),
        ("iperf3-csv", "_start,_end,Throughput\n0,1,x\n", ":2:", "'x'"),
        ("ucc-5g", "Timestamp,DL_bitrate,State\nyesterday,1,D\n", ":2:", "'yesterday'"),
        ("ucc-5g", "Timestamp,DL_bitrate,State\n2020.01.16_12.10.03,1,I\n", "", "no samples"),
        ("mahimahi", "0\n-1\n", ":2:", "'-1'"),
        ("mahimahi", "5\n4\n", ":2:", "comes before"),
        ("mahimahi", "0\n0\n", "", "no period"),
        ("mahimahi", "0\n99999999999999\n", ":2:", "millisecond"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, reader, text, where, what):
    path = log(tmp_path, text)
    with pytest.raises(InputError) as error:
        import_trace(path, reader)
    assert f"{path}{where}" in str(error.value)
    assert what in str(error.value)


def test_an_unknown_reader_gets_the_nearest(tmp_path):
    with pytest.raises(InputError, match="Did you mean 'mahimahi'"):
        import_trace(log(tmp_path, "0\n1\n"), "mahimai")


def test_a_million_idle_milliseconds_cost_nothing(tmp_path):
    trace = import_trace(log(tmp_path, "0\n1000000000\n"))
    assert len(trace.rates) == 3
    assert np.isfinite(trace.mean())
