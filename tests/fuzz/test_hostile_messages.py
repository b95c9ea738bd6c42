"""Devices and clients that say whatever they like: others are answered all the same, and no fault is one of ours."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import damaged
from deadline import deadline
from odd_values import ODD, odd
from seeds import blocks, check_each
from served_cloud import REQUEST, ServedCloud, Stranger, serving
from small_cloud import address, answering, raw, write_store

from kvferry.backends.live.wire.event import written
from kvferry.scenarios.loader import load_scenario

pytest.importorskip("torch")
pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("hostile messages")]
HERE = "tests/fuzz/test_hostile_messages.py"
SMALL = ("workload.prompt=256", "workload.beginning=6", "workload.question=7", "workload.output=64")
DRAFTING = REQUEST | {"drafts": True, "tokens": 1, "ratio": 1.0}
BEHIND = REQUEST | {"mask": "behind-token"}
DRAFTS = {"drafted": 2, "before": [(97, "a")], "said": [(98, "b"), (99, "c")]}
# A healthy device asks behind so many hostile ones.
EVERY = 20


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with deadline(600):
        yield


@pytest.fixture(scope="module")
def cloud() -> Iterator[ServedCloud]:
    with serving(load_scenario("pd_device/live", [*SMALL])) as cloud:
        yield cloud


def talk(chance: Random, device: Stranger) -> None:
    """Some of what a device can say, in some order. Ends where the cloud ends it."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        how = chance.randrange(8)
        if how < 3:
            _post(device, _written(odd(chance, chance.choice((REQUEST, BEHIND, DRAFTING)))))
        elif how == 3:
            _post(device, _written(chance.choice((REQUEST, BEHIND, DRAFTING))))
            if chance.random() < 0.5:
                device.hear()
            _post(device, _written(odd(chance, DRAFTS)))
        elif how == 4:
            _post(device, damaged(chance, written(REQUEST, 1.0)))
        elif how == 5:
            _post(device, _written(chance.choice(ODD)), chance.choice(("part", "end", "goodbye", "message", "x", "")))
        elif how == 6:
            _post(device, written(REQUEST, 1.0), number=chance.choice((0, -1, 1, 7, 10**15)))
        else:
            device.key = chance.choice((device.key, device.key[:-1] + "x", "..", "%00"))
            _post(device, written(REQUEST, 1.0))
    if chance.random() < 0.4:
        device.hear()


def _written(value: Any) -> bytes:
    try:
        return written(value, 1.0)
    except (TypeError, ValueError):
        return b'{"weighs":1,"value":[]}'


def _post(device: Stranger, data: bytes, kind: str = "message", number: int | None = None) -> None:
    device.post(data, kind, number)


@blocks(quick=20, long=2000, size=20)
def test_devices_that_say_whatever_they_like(seeds: range, cloud: ServedCloud) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        # The end of its channel, and bad URLs that http.client will not send.
        with suppress(OSError, HTTPException, ValueError), cloud.device(f"stranger-{seed}") as device:
            device.socket.settimeout(0.3)
            talk(chance, device)
        faults = [said for said in cloud.said if "a fault of its own" in said]
        cloud.said.clear()
        if faults:
            return faults[0]
        return None if seed % EVERY or cloud.answers("phone") else "a healthy device was not answered"

    check_each(seeds, f"{HERE}::test_devices_that_say_whatever_they_like", case)


HEADS = (
    b"GET /contexts HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /contexts/0/index HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /contexts/0/chunks?ids=0-3&level=0 HTTP/1.1\r\nhost: localhost\r\nrange: bytes=0-100\r\n\r\n",
    b'HEAD /contexts/0/file HTTP/1.1\r\nhost: localhost\r\nif-match: "x"\r\n\r\n',
    b"POST /replay HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\n\r\n",
    b"GET /channels/cloud/phone HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n",
    b'POST /said/0123/message?n=1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"a": 1}\n',
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("stores")
    write_store(folder / "0.kvs")
    with pytest.MonkeyPatch.context() as patch, answering(folder, patch) as url:
        yield url


@blocks(quick=40, long=4000, size=40)
def test_requests_that_are_none(
    seeds: range, cloud: ServedCloud, stores: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        for url in (cloud.url, stores):
            with suppress(OSError), socket.create_connection(address(url), timeout=0.2) as connection:
                connection.sendall(damaged(chance, chance.choice(HEADS)))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        if said := [one for one in capfd.readouterr().err.splitlines() if "could not answer" in one]:
            return said[0]
        if seed % EVERY:
            return None
        if b"0\n" not in raw(stores, HEADS[0].replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")):
            return "the server of stores does not answer any more"
        return None if cloud.answers("phone") else "a healthy device was not answered"

    check_each(seeds, f"{HERE}::test_requests_that_are_none", case)


@pytest.mark.long
def test_memory_is_as_before(cloud: ServedCloud) -> None:
    """Behind all that was said above: nothing of it is kept. Told apart from what torch and the system keep."""
    statm = Path("/proc/self/statm")
    cloud.answers("phone")
    before_bytes = int(statm.read_text().split()[1]) * 4096
    for seed in range(100):
        with suppress(OSError, HTTPException, ValueError), cloud.device(f"stranger-{seed}") as device:
            device.socket.settimeout(0.3)
            talk(Random(seed), device)
    assert cloud.answers("phone")
    assert int(statm.read_text().split()[1]) * 4096 < before_bytes + 2**26
