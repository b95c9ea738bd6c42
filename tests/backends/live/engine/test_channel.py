"""Channels between processes: whole messages in order, and a clear end, however it comes."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import example, given
from hypothesis import strategies as st

from kvferry.backends.live.engine.channel import LiveChannel, SocketSwitchboard
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.messages import packed, unpacked
from kvferry.machine.channel import ChannelBroken
from kvferry.specs.errors import InputError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_messages_come_out_as_they_went_in(message: Any) -> None:
    text, blobs = packed(message)
    got = unpacked(bytearray(text), bytearray(b"".join(blobs)))
    assert got == message
    assert type(got) is type(message)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["tuple", "dict", "bytes", "code"]), inner),
    max_leaves=10,
)


@given(plain.map(lambda value: json.dumps(value).encode()) | st.binary(min_size=1), st.binary())
@example(b"[" * 100_000, b"")
def test_what_a_stranger_says_is_a_message_or_an_error(text: bytes, blobs: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.suppress(ChannelBroken):
        theirs.sendall(struct.pack("!IQ", len(text), len(blobs)) + text + blobs)
        LiveChannel(WallClockEnvironment(), "cloud", lambda: ours)._receive()


@pytest.mark.parametrize("message", [{1: "a"}, {"a": {2, 3}}, object(), [print]])
def test_what_is_no_message_is_refused_where_it_is_sent(message: Any, tmp_path: Path) -> None:
    channel = SocketSwitchboard(WallClockEnvironment(), tmp_path).open("device", "cloud")
    with pytest.raises(TypeError, match="a message cannot hold"):
        channel.send(message, 1)
    with pytest.raises(TypeError, match="cannot be sent"):
        channel.send(None, 1)


def test_each_part_is_told_as_it_arrives() -> None:
    env = WallClockEnvironment()
    board = SocketSwitchboard(env, None)
    here, there = board.open("device", "cloud"), board.open("cloud", "device")
    came = env.event()
    received = there.receive(lambda times_s, values: came.succeed(values[0]))
    stream = here.stream(n_bytes=1)
    stream.put(7)
    # The stream has not ended, and will not before its part is there.
    assert env.run(until=came) == 7
    assert not received.triggered
    stream.end()
    assert env.run(until=received).values == [7]
    board.close()


# --- with a process at the other end -----------------------------------------------------------------------------

PEER = """
    import sys, time
    from kvferry.backends.live.engine.channel import SocketSwitchboard
    from kvferry.backends.live.engine.environment import WallClockEnvironment

    env = WallClockEnvironment()
    channel = SocketSwitchboard(env, sys.argv[1]).open("cloud", "device")

    def echo():
        while (message := (yield channel.receive())) is not None:
            yield channel.send(message, 1)
            print("echoed", flush=True)
        channel.close()

    env.run(until=env.process(echo()))
    env.run()
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", textwrap.dedent(PEER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def run(env: WallClockEnvironment, story: simpy.events.ProcessGenerator) -> Any:
    return env.run(until=env.process(story))


def test_two_processes_talk(peer: subprocess.Popen[str], tmp_path: Path) -> None:
    env = WallClockEnvironment()
    board = SocketSwitchboard(env, tmp_path)
    channel = board.open("device", "cloud")
    assert board.open("device", "cloud") is channel
    messages = [1, ("mask", b"\x00\x01" * 500_000), {"tokens": [1, 2, 3], "done": False}, "end"]

    def story() -> simpy.events.ProcessGenerator:
        for message in messages:
            channel.send(message, n_bytes=1)
        channel.close()
        channel.close()
        got = []
        while (message := (yield channel.receive())) is not None:
            got.append(message)
        assert (yield channel.receive()) is None
        return got

    assert run(env, story()) == messages
    assert peer.wait(timeout=20) == 0
    with pytest.raises(RuntimeError, match="closed"):
        channel.send(1, 1)
    board.close()
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_dies_fails_what_waits_for_it(peer: subprocess.Popen[str], tmp_path: Path) -> None:
    env = WallClockEnvironment()
    channel = SocketSwitchboard(env, tmp_path).open("device", "cloud")

    def flood() -> simpy.events.ProcessGenerator:
        while True:
            yield channel.send(b"x" * 100_000, 1)

    def story() -> simpy.events.ProcessGenerator:
        yield channel.send(1, 1)
        assert (yield channel.receive()) == 1
        waiting = channel.receive()
        assert peer.stdout is not None
        assert peer.stdout.readline() == "echoed\n"
        os.kill(peer.pid, signal.SIGKILL)
        with pytest.raises(ChannelBroken, match="cloud went away without saying goodbye"):
            yield waiting
        with pytest.raises(ChannelBroken, match="cannot send to cloud: it is gone"):
            yield env.process(flood())

    run(env, story())
    channel.close()  # the peer is gone: its end of the socket is closed
    env.run()
    channel.hang_up()


# --- ends that never meet, or are not ours -----------------------------------------------------------------------


def test_a_peer_that_never_comes_is_reported(tmp_path: Path) -> None:
    env = WallClockEnvironment()
    board = SocketSwitchboard(env, tmp_path, patience_s=0.05)
    with pytest.raises(ChannelBroken, match=r"zoo did not call within 0\.05 s at .*device\+zoo\.sock"):
        env.run(until=board.open("device", "zoo").receive())
    with pytest.raises(ChannelBroken, match=r"cloud did not listen within 0\.05 s at .*cloud\+device\.sock"):
        env.run(until=board.open("device", "cloud").send(1, 1))
    assert list(tmp_path.iterdir()) == []


def test_machines_of_one_process_may_come_late() -> None:
    env = WallClockEnvironment()
    board = SocketSwitchboard(env, folder=None, patience_s=0.0)
    heard = board.open("device", "zoo").receive()
    env.run(until=env.timeout(0.05))
    there = board.open("zoo", "device")
    there.send("late", 1)
    assert env.run(until=heard) == "late"
    # Messages wait for an end that is not open yet, and channels that are never used end with the board.
    board.open("cloud", "zoo").send("early", 1)
    assert env.run(until=board.open("zoo", "cloud").receive()) == "early"
    board.open("cloud", "device")
    board.close()


@pytest.mark.parametrize("name", ["", "../cloud", "a/b", "a+b", ".", "clóud"])
def test_names_stay_inside_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="needs a name"):
        SocketSwitchboard(WallClockEnvironment(), tmp_path).open("device", name)


def test_addresses_that_cannot_be_are_reported(tmp_path: Path) -> None:
    env = WallClockEnvironment()
    with pytest.raises(InputError, match="too long for the address of a socket"):
        SocketSwitchboard(env, tmp_path / ("x" * 100)).open("device", "cloud")
    with pytest.raises(InputError, match="cannot open a channel with itself"):
        SocketSwitchboard(env, tmp_path).open("device", "device")
    (tmp_path / "a+b.sock").touch()
    with pytest.raises(InputError, match=r"cannot listen at .*a\+b\.sock: Address already in use"):
        env.run(until=SocketSwitchboard(env, tmp_path).open("a", "b").receive())


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", "went away"),
        (b"GET / HT", "went away"),
        (b"GET / HTTP/1.1\r\n\r\n", "no message of ours"),
        (struct.pack("!IQ", 5, 0) + b"[1,2]", None),
        (struct.pack("!IQ", 5, 0) + b"[1,", "went away"),
        (struct.pack("!IQ", 5, 0) + b"[1,2}", "no message of ours"),
        (struct.pack("!IQ", 11, 2) + b'{"bytes":3}' + b"ab", "no message of ours"),
        (struct.pack("!IQ", 5, 1 << 60), "no message of ours"),
    ],
)
def test_what_is_not_ours_is_reported_and_nothing_waits_for_more(sent: bytes, error: str | None) -> None:
    env = WallClockEnvironment()
    ours, theirs = socket.socketpair()
    channel = LiveChannel(env, "cloud", lambda: ours)
    theirs.sendall(sent)
    theirs.close()
    if error is None:
        assert env.run(until=channel.receive()) == [1, 2]
    else:
        with pytest.raises(ChannelBroken, match=error):
            env.run(until=channel.receive())
    channel.hang_up()


def test_hanging_up_ends_what_waits(tmp_path: Path) -> None:
    env = WallClockEnvironment()
    ours, theirs = socket.socketpair()
    channel = LiveChannel(env, "cloud", lambda: ours)
    waiting = channel.receive()
    env.run(until=channel.send(1, 1))
    channel.hang_up()
    with pytest.raises(ChannelBroken, match="went away"):
        env.run(until=waiting)
    theirs.close()
