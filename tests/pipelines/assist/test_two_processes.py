"""A device and a cloud in two processes, with a model each; and a cloud that is killed, stopped, or cut off.

One cloud serves all tests, the last of which kills it: they run in order.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadline import deadline

from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("two processes")]
ASSIST = "system_policies.pd-device.assist"
# What is taken for a slow device promises a slow pace: however busy this machine is, the cloud's tokens are in time.
SLOW = "device.processors.cpu.bytes_per_s=30 MB/s"
# Behind a mask that comes with the first token, the others come one by one; behind one of its own, together.
ONE_BY_ONE = f"{ASSIST}.mask=with-token"
SMALL = (SLOW, "workload.prompt=512", "workload.output=12", f"{ASSIST}.tokens=6", f"{ASSIST}.ratio=0.5", ONE_BY_ONE)
TOKEN = "open-sesame-42"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with deadline(150):
        yield


class Cloud:
    """``kvferry serve-cloud``, on a port that the system chooses."""

    def __init__(self) -> None:
        program = "from kvferry.cli.main import main; main()"
        command = [sys.executable, "-c", program, "serve-cloud", "pd_device/live", "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "KVFERRY_TOKEN": TOKEN}
        )
        assert self.process.stdout is not None
        try:
            self.url = self.process.stdout.readline().strip()
        except BaseException:
            # Too late for its test, and it would serve for ever.
            self.end()
            raise

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with deadline(150):
        cloud = Cloud()
    try:
        assert cloud.url.startswith("http://127.0.0.1:")
        yield cloud
    finally:
        cloud.end()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_TOKEN", TOKEN)


def carried_out(where: str, *more: str) -> Run:
    return run_scenario(load_scenario("pd_device/live", [*SMALL, f"live.cloud={where}", *more]))


def after_the_first_token(monkeypatch: pytest.MonkeyPatch, harm: Callable[[], Any]) -> None:
    """`harm` is called as soon as a part of the stream has come over the wire."""
    from kvferry.backends.live.wire import caller

    really, harmed = caller.read, []

    def read(kind: str, data: bytes) -> Any:
        if kind == "part" and not harmed:
            harmed.append(True)
            harm()
        return really(kind, data)

    monkeypatch.setattr(caller, "read", read)


def finished_alone(run: Run, why: str) -> None:
    """The device has finished the answer, and says what happened."""
    assert run.outcome == "done"
    assert [len(request.token_times_s) for request in run.requests] == [12]
    assert run.assisted is not None
    assert run.assisted.columns["lost"].tolist() == [1.0]
    assert why in run.notes[0]


def test_a_cloud_beside_the_run_helps_as_one_within() -> None:
    apart, together = (carried_out(where, "workload.requests=2") for where in ("beside", "within"))
    for run in (apart, together):
        assert run.outcome == "done"
        assert run.assisted is not None
        assert run.assisted.columns["lost"].tolist() == [0.0, 0.0]
        assert run.assisted.columns["came"].tolist() == [6.0, 6.0]
    # The same words from the same models, over the same modelled link; the cloud's spans are in its own process.
    assert apart.assisted.answers == together.assisted.answers  # type: ignore[union-attr]
    for label in ("link", "uplink"):
        assert apart.counted.bytes_of(label, "Message") == together.counted.bytes_of(label, "Message") > 0


@pytest.mark.long
def test_a_cloud_serves_run_after_run(cloud: Cloud) -> None:
    for _ in range(2):
        run = carried_out(cloud.url)
        assert run.assisted is not None
        assert run.assisted.columns["lost"].tolist() == [0.0]
        # What lies between is real: no modelled link was crossed.
        assert run.counted.bytes_of("link", "Message") == 0


def test_a_device_without_the_token_is_told(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_TOKEN", "open-sesame-43")
    with pytest.raises(InputError, match="needs the right token"):
        carried_out(cloud.url)


@pytest.mark.long
def test_a_stream_that_stalls(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    after_the_first_token(monkeypatch, lambda: os.kill(cloud.process.pid, signal.SIGSTOP))
    try:
        finished_alone(carried_out(cloud.url, f"{ASSIST}.patience=1 s"), "was not there when the device had its own")
    finally:
        os.kill(cloud.process.pid, signal.SIGCONT)


@pytest.mark.long
def test_a_socket_that_is_cut(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.wire.caller import CallingWire

    wires: list[CallingWire] = []
    begin = CallingWire.begin

    def begun(wire: CallingWire, heard: Any) -> None:
        wires.append(wire)
        begin(wire, heard)

    monkeypatch.setattr(CallingWire, "begin", begun)
    after_the_first_token(monkeypatch, lambda: wires[0].hang_up())
    finished_alone(carried_out(cloud.url), "cloud went away without saying goodbye")
    monkeypatch.undo()
    monkeypatch.setenv("KVFERRY_TOKEN", TOKEN)
    # The cloud serves others as before.
    assert carried_out(cloud.url).assisted.columns["lost"].tolist() == [0.0]  # type: ignore[union-attr]


@pytest.mark.long
def test_what_is_no_message(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.wire import caller

    really = caller.read
    monkeypatch.setattr(caller, "read", lambda kind, data: really(kind, data[:-1] if kind == "part" else data))
    finished_alone(carried_out(cloud.url), "what cloud sends is no message of ours")


def test_a_cloud_that_is_killed_and_one_that_is_not_there(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    after_the_first_token(monkeypatch, lambda: os.kill(cloud.process.pid, signal.SIGKILL))
    finished_alone(carried_out(cloud.url), "cloud went away without saying goodbye")
    finished_alone(carried_out(cloud.url), "cannot be reached: Connection refused")


OWNER = """
    import time
    from kvferry.backends.live.world import CLOUD_PROCESS
    from kvferry.cloud.child_server import ChildServer
    from kvferry.scenarios.loader import dump_scenario, load_scenario

    scenario = dump_scenario(load_scenario("pd_device/live"))
    server = ChildServer(CLOUD_PROCESS, {"scenario": scenario, "token": None}, 120)
    print(server.process_id, server.url, flush=True)
    time.sleep(60)
"""


@pytest.mark.long
def test_a_cloud_ends_with_the_run_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(OWNER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        process_id, url = owner.stdout.readline().split()
        assert url.startswith("http://127.0.0.1:")
        assert Path(f"/proc/{process_id}").exists()
        owner.kill()
    while Path(f"/proc/{process_id}/fd").exists() and (Path(f"/proc/{process_id}/stat").read_text().split()[2]) != "Z":
        time.sleep(0.05)
