"""Channels over HTTP: what comes out is what went in, and every way to fail is told to who waits."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.wire import caller, open_sockets, reception, served_wires
from kvferry.backends.live.wire.caller import CallingSwitchboard, CloudAddress
from kvferry.backends.live.wire.event import KINDS, MESSAGE, NoEvent, as_sent, events, read, written
from kvferry.backends.live.wire.reception import Reception
from kvferry.machine.channel import (
    Channel,
    ChannelBroken,
    ChannelCut,
    ChannelGarbled,
    ChannelStalled,
    ChannelUnreachable,
)
from kvferry.sim.access import Accesses, access_over
from kvferry.specs.device import NetworkInterfaceSpec
from kvferry.specs.errors import InputError
from kvferry.traces.rate import RateTrace

OPENED = as_sent("open", b'{"key": "k1"}')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
TOKEN = "open-sesame-42"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


# --- events, by hand and for any --------------------------------------------------------------------------------------


def test_an_event_by_hand() -> None:
    data = written(("mask", b"\x00\x01", 3), 60)
    assert data == b'{"weighs":60.0,"value":{"tuple": ["mask", {"bytes": 2}, 3]},"bytes":"AAE="}'
    stream = b": here\n\n" + as_sent(MESSAGE, data) + b": here\n\n" + as_sent("end", b"{}") + b"event: par"
    lines = iter(stream.splitlines(keepends=True))
    assert list(events(lambda most: next(lines, b""))) == [(MESSAGE, data), ("end", b"{}")]


@given(values, st.floats(min_value=0, max_value=1e12))
def test_values_come_out_as_they_went_in(value: Any, weighs: float) -> None:
    said = read("part", written(value, weighs))
    assert (said.value, said.weighs) == (value, weighs)
    assert type(said.value) is type(value)


@given(st.sampled_from([*KINDS, "code", ""]), st.binary() | values.map(lambda value: written(value, 1)[:-2]))
@example(MESSAGE, b'{"weighs": -1, "value": 1}')
@example(MESSAGE, b'{"weighs": 1e999, "value": 1}')
@example(MESSAGE, b'{"weighs": 0, "value": null}')
@example(MESSAGE, b'{"weighs": 0, "value": ' + b"[" * 100_000)
def test_what_a_stranger_says_is_an_event_or_none(kind: str, data: bytes) -> None:
    with pytest.raises(NoEvent):
        read(kind, data)


# --- a device and a reception -----------------------------------------------------------------------------------------


class Pair:
    """A device and a cloud in one environment, by a real server."""

    def __init__(self, **reception: Any) -> None:
        self.env = WallClockEnvironment()
        self.cloud = Reception(self.env, **reception).begin()
        self.boards: list[Any] = [self.cloud]

    def device(self, url: str | None = None, **board: Any) -> CallingSwitchboard:
        token = board.pop("token", None)
        self.boards.insert(0, CallingSwitchboard(self.env, CloudAddress(url or self.cloud.url, token), **board))
        return self.boards[0]

    def close(self) -> None:
        for board in self.boards:
            board.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def pair(**reception: Any) -> Pair:
        made.append(Pair(**reception))
        return made[-1]

    yield pair
    for one in made:
        one.close()


def test_a_role_begins_when_a_device_arrives(make: Callable[..., Pair]) -> None:
    came: list[tuple[str, str]] = []

    def arrived(machine: str, device: str) -> None:
        came.append((machine, device))
        pair.env.process(role(pair.cloud.open(machine, device), device))

    def role(channel: Channel, device: str) -> Any:
        while (message := (yield channel.receive())) is not None:
            channel.send({"seen": message}, 1)
        channel.close()
        pair.cloud.leave("cloud", device)

    pair = make(arrived=arrived)
    for _ in range(2):  # the name is free again
        channel = pair.device().open("phone", "cloud")
        channel.send(("prompt", b"\x00\xff"), 1)
        assert pair.env.run(until=channel.receive()) == {"seen": ("prompt", b"\x00\xff")}
        channel.close()
        assert pair.env.run(until=channel.receive()) is None
    assert came == [("cloud", "phone")] * 2


def test_a_device_stands_for_the_link_both_ways(make: Callable[..., Pair]) -> None:
    # A message of 10,000 bytes takes 0.1 s up and 0.1 s down, and half of 40 ms on either way.
    pair, spans = make(), []
    accesses = Accesses(pair.env)
    rate = RateTrace.constant(100e3)
    accesses.connect("phone", access_over(pair.env, rate, None, 0.04, NetworkInterfaceSpec(), spans.append))
    here, there = pair.device(carry=accesses).open("phone", "cloud"), pair.cloud.open("cloud", "phone")
    here.send("up", 10_000)
    assert pair.env.run(until=there.receive()) == "up"
    up_s = pair.env.now
    there.send("down", 10_000)
    stream = there.stream(1000)
    for n in range(3):
        stream.put(n)
    stream.end()
    there.close()
    assert pair.env.run(until=here.receive()) == "down"
    assert up_s >= 0.12
    assert pair.env.now >= up_s + 0.12
    streamed = pair.env.run(until=here.receive())
    assert streamed.values == [0, 1, 2]
    assert all(later - before >= 0.0099 for before, later in zip(streamed.times_s, streamed.times_s[1:], strict=False))
    assert pair.env.run(until=here.receive()) is None
    assert [(span.resource, span.n_bytes) for span in spans if span.n_bytes] == [
        ("uplink", 10_000),
        ("link", 10_000),
        *[("link", 1000)] * 3,
    ]


def test_a_token_is_needed_where_one_is_set(make: Callable[..., Pair], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="can be reached from elsewhere: a token is needed"):
        Reception(WallClockEnvironment(), host="0.0.0.0")
    pair = make(token=TOKEN)
    for token in (None, "open-sesame-43"):
        channel = pair.device(token=token).open("phone", "cloud")
        with pytest.raises(InputError, match="needs the right token"):
            pair.env.run(until=channel.receive())
    # A key without the token is of no use either.
    channel = pair.device(token=TOKEN).open("phone", "cloud")
    channel.send("prompt", 1)
    assert pair.env.run(until=pair.cloud.open("cloud", "phone").receive()) == "prompt"
    assert said(pair, key_of(pair), 2, written(1, 1))[0] == 401
    assert TOKEN not in "".join(capfd.readouterr())


def test_a_cloud_that_lets_nobody_in_any_more_is_one_that_cannot_be_reached(make: Callable[..., Pair]) -> None:
    """Behind what it has said before, a refusal is no fault of the input, which would end the run."""
    pair = make(token=TOKEN)
    board = pair.device(token=TOKEN)
    first = board.open("phone", "cloud")
    first.send("prompt", 1)
    assert pair.env.run(until=pair.cloud.open("cloud", "phone").receive()) == "prompt"
    first.hang_up()
    board._cloud.headers = {"authorization": "Bearer open-sesame-43"}
    with pytest.raises(ChannelBroken):
        pair.env.run(until=first.receive())
    with pytest.raises(ChannelUnreachable, match="lets nobody in any more: needs the right token"):
        pair.env.run(until=board.open("phone", "cloud").receive())


def test_a_name_is_taken_and_the_house_is_full(make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_wires, "MOST_CHANNELS", 1)
    pair = make()
    first = pair.device().open("phone", "cloud")
    first.send(1, 1)
    pair.env.run(until=pair.cloud.open("cloud", "phone").receive())
    for name, why in (("phone", "of this name is here already"), ("tablet", "1 devices are here already")):
        with pytest.raises(ChannelUnreachable, match=why):
            pair.env.run(until=pair.device().open(name, "cloud").receive())


def said(pair: Pair, key: str, number: int, data: bytes, length: int | None = None) -> tuple[int, str]:
    connection = HTTPConnection(pair.cloud.url.removeprefix("http://"), timeout=10)
    headers = {"content-length": str(len(data) if length is None else length)}
    connection.request("POST", f"/said/{key}/message?n={number}", data, headers)
    answer = connection.getresponse()
    status, words = answer.status, answer.read().decode()
    connection.close()
    return status, words


def key_of(pair: Pair) -> str:
    (wire,) = pair.cloud._wires
    return wire.key


def test_what_is_said_twice_is_heard_once_and_what_is_missing_ends_the_channel(make: Callable[..., Pair]) -> None:
    pair = make()
    here, there = pair.device().open("phone", "cloud"), pair.cloud.open("cloud", "phone")
    here.send("one", 1)
    assert pair.env.run(until=there.receive()) == "one"
    key = key_of(pair)
    assert said(pair, key, 1, written("one", 1)) == (204, "")
    assert said(pair, key, 2, written("two", 1)) == (204, "")
    assert said(pair, "k1", 3, written("three", 1)) == (404, "this channel has ended")
    assert said(pair, key, 3, b"", length=2**24 + 1)[0] == 413
    assert said(pair, key, 4, written("four", 1)) == (400, "this is no message of ours: number 4 after 2")
    assert pair.env.run(until=there.receive()) == "two"
    with pytest.raises(ChannelGarbled, match="number 4 after 2"):
        pair.env.run(until=there.receive())
    with pytest.raises(ChannelCut):
        pair.env.run(until=here.receive())


def test_what_is_too_long_is_refused_where_it_is_sent(make: Callable[..., Pair]) -> None:
    channel = make().device().open("phone", "cloud")
    with pytest.raises(ValueError, match=r"a message of 22,369,\d+ bytes is longer"):
        channel.send(bytes(2**24), 1)


def test_a_device_that_goes_is_noticed(make: Callable[..., Pair]) -> None:
    pair = make()
    board = pair.device()
    board.open("phone", "cloud").send("prompt", 1)
    there = pair.cloud.open("cloud", "phone")
    assert pair.env.run(until=there.receive()) == "prompt"
    waiting = there.receive()
    board.close()
    with pytest.raises(ChannelCut, match="phone went away without saying goodbye"):
        pair.env.run(until=waiting)
    with pytest.raises(ChannelCut, match="cannot send to phone: it is gone"):
        pair.env.run(until=there.send("token", 1))


def test_a_device_that_comes_again_ends_its_last_channel(make: Callable[..., Pair]) -> None:
    """Whatever is known of that one's end: it is another connection of the same process."""
    pair = make()
    board = pair.device()
    board.open("phone", "cloud").send("prompt", 1)
    there = pair.cloud.open("cloud", "phone")
    assert pair.env.run(until=there.receive()) == "prompt"
    pair.boards.insert(0, CallingSwitchboard(pair.env, board._cloud))
    pair.boards[0].open("phone", "cloud").send("again", 1)
    with pytest.raises(ChannelCut, match="phone came again"):
        pair.env.run(until=there.receive())
    assert pair.env.run(until=pair.cloud.open("cloud", "phone").receive()) == "again"


# --- clouds that are none, or no longer -------------------------------------------------------------------------------


def stranger(*answers: bytes, keep: float = 0.0) -> str:
    """The URL of a server that gives each connection one of these answers, whatever it is asked, and closes it; or
    keeps it for so long."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening:
            listening.settimeout(20)
            for answer in answers:
                wire, _ = listening.accept()
                with wire:
                    wire.recv(2**16)
                    wire.sendall(answer)
                    threading.Event().wait(keep)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def heard(url: str, patience_s: float | None = None) -> tuple[list[Any], ChannelBroken]:
    """What a device hears of a cloud there, part by part, and what ends it."""
    env = WallClockEnvironment()
    parts: list[Any] = []
    board = CallingSwitchboard(env, CloudAddress(url))
    channel = board.open("phone", "cloud")
    with pytest.raises(ChannelBroken) as caught:
        env.run(until=channel.receive(lambda times_s, values: parts.extend(values), patience_s))
    # And it stays so.
    with pytest.raises(type(caught.value)):
        env.run(until=channel.receive())
    board.close()
    return parts, caught.value


def test_a_cloud_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    parts, error = heard(url)
    assert (parts, type(error)) == ([], ChannelUnreachable)
    assert str(error) == f"cloud at {url} cannot be reached: Connection refused"


TOKEN_OF_STREAM = as_sent("part", written(7, 1))


@pytest.mark.parametrize(
    ("answer", "parts", "kind", "why"),
    [
        (b"", [], ChannelUnreachable, "closed connection"),
        (b"SSH-2.0-OpenSSH\r\n", [], ChannelUnreachable, "SSH"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>", [], ChannelGarbled, "it answers 200 <p>"),
        (b"HTTP/1.1 404 No\r\n\r\nwhat?", [], ChannelGarbled, "it answers 404 what?"),
        (HEAD + b"<p>\n", [], ChannelGarbled, "a line that begins with b'<p>'"),
        (HEAD + as_sent("open", b'{"key": "../x"}'), [], ChannelGarbled, "begins with 'open'"),
        (HEAD + OPENED, [], ChannelCut, "went away without saying goodbye"),
        (HEAD + OPENED + TOKEN_OF_STREAM, [7], ChannelCut, "went away without saying goodbye"),
        (HEAD + OPENED + TOKEN_OF_STREAM + TOKEN_OF_STREAM[:-1], [7], ChannelCut, "went away"),
        (HEAD + OPENED + TOKEN_OF_STREAM + as_sent("part", b"{}"), [7], ChannelGarbled, "KeyError: 'weighs'"),
        (HEAD + OPENED + TOKEN_OF_STREAM + b"\x00\xff\n\n", [7], ChannelGarbled, "no message of ours"),
    ],
)
def test_a_cloud_that_goes_away_or_speaks_something_else(
    answer: bytes, parts: list[Any], kind: type[ChannelBroken], why: str
) -> None:
    got, error = heard(stranger(answer))
    assert (got, type(error)) == (parts, kind)
    assert why in str(error)


def test_a_cloud_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    # Patience begins before there is a connection, which takes its time on a busy machine.
    got, error = heard(stranger(HEAD + OPENED + TOKEN_OF_STREAM, keep=20.0), patience_s=2.0)
    assert (got, type(error)) == ([7], ChannelStalled)
    assert str(error) == "nothing has come from cloud for 2 s"
    # Without patience, it is enough that a cloud says nothing at all, not even that it is there.
    monkeypatch.setattr(caller, "SILENCE_S", 0.2)
    got, error = heard(stranger(HEAD + OPENED + TOKEN_OF_STREAM, keep=20.0))
    assert (got, type(error)) == ([7], ChannelStalled)
    assert str(error) == "cloud has given no sign of life for 0.2 s"
    # And a cloud that lets nobody in.
    monkeypatch.setattr(caller, "ANSWER_S", 0.2)
    got, error = heard(stranger(b"HTTP/1.1 200", keep=20.0))
    assert (got, type(error)) == ([], ChannelUnreachable)


def test_a_cloud_that_is_cut_off_before_this_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that cuts it off is not late, and this one is."""

    class Overtaking(threading.Timer):
        def start(self) -> None:
            super().start()
            self.join()

    monkeypatch.setattr(open_sockets, "Timer", Overtaking)
    monkeypatch.setattr(caller, "ANSWER_S", 0.05)
    got, error = heard(stranger(b"HTTP/1.1 200", keep=1.0))
    assert (got, type(error)) == ([], ChannelUnreachable)
    assert "it has not answered within 0.05 s" in str(error)


def test_signs_of_life_keep_a_channel(make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "SILENCE_S", 0.5)
    monkeypatch.setattr(reception, "SIGN_S", 0.05)
    pair = make()
    here, there = pair.device().open("phone", "cloud"), pair.cloud.open("cloud", "phone")
    waiting = here.receive()
    pair.env.run(until=pair.env.timeout(0.8))
    there.send("late", 1)
    assert pair.env.run(until=waiting) == "late"


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", "http://user@x", "http://x?y=1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InputError, match="is no cloud"):
        CloudAddress(url)


def test_the_protocol_is_json(make: Callable[..., Pair]) -> None:
    """As a stranger would speak it."""
    pair = make()
    there = pair.cloud.open("cloud", "curl")
    there.send({"token": 7}, 60)
    connection = HTTPConnection(pair.cloud.url.removeprefix("http://"), timeout=10)
    connection.request("GET", "/channels/cloud/curl")
    lines = iter(connection.getresponse().readline, b"")
    assert next(lines) == b"event: open\n"
    key = json.loads(next(lines).removeprefix(b"data: "))["key"]
    assert [next(lines), next(lines)] == [b"\n", b"event: message\n"]
    assert json.loads(next(lines).removeprefix(b"data: ")) == {"weighs": 60, "value": {"dict": {"token": 7}}}
    assert said(pair, key, 1, b'{"weighs": 4, "value": "prompt"}') == (204, "")
    assert pair.env.run(until=there.receive()) == "prompt"
    connection.close()
