"""KV in the memory of a device with streams: what waits for what, by a fake one and on a real one."""

from pathlib import Path
from typing import Any

import pytest
from decoding import roles_of
from small_decoding import SmallDecoding, exact_logits
from tiny import LIVE_DECODING, tiny

from kvferry.machine.ops import Extents
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class FakeStreams:
    """A Copies over the CPU's memory. ``log``: what each stream was given, in order; marks are numbered."""

    def __init__(self) -> None:
        self.present, self.log, self.marks = "compute", list[tuple[str, str, int]](), 0

    def device_memory(self, n_bytes: int) -> Any:
        return torch.zeros(n_bytes, dtype=torch.uint8)

    host_memory = device_memory

    def mark(self) -> int:
        self.marks += 1
        self.log.append((self.present, "mark", self.marks))
        return self.marks

    def behind(self, mark: int) -> None:
        self.log.append((self.present, "behind", mark))

    def used_here(self, tensor: Any) -> None:
        self.log.append((self.present, "used", len(tensor)))

    def to_device(self, tensor: Any) -> Any:
        self.log.append((self.present, "to device", len(tensor)))
        return tensor

    def to_host(self, tensor: Any) -> Any:
        self.log.append((self.present, "to host", len(tensor)))
        return tensor


def test_reads_wait_for_the_copy_and_copies_for_the_reads_by_hand() -> None:
    from kvferry.backends.live.decoding.copies import DeviceMemory

    streams = FakeStreams()
    memory = DeviceMemory(streams.device_memory(100), streams, regions=2)
    # The copy stream brings 4 B into the first region; the compute stream reads them, and 2 B of the second.
    streams.present = "copy"
    memory.write(Extents((10,), (4,)), b"abcd")
    streams.present = "compute"
    read = memory.read(Extents((10, 60), (4, 2)))
    # Both regions were read before the copy stream writes there again; the second had not been written.
    streams.present = "copy"
    memory.write(Extents((60,), (2,)), b"xy")
    memory.write(Extents((10,), (4,)), b"ABCD")
    assert streams.log == [
        ("copy", "to device", 4),
        ("copy", "mark", 1),
        ("compute", "behind", 1),
        ("compute", "mark", 2),
        ("copy", "behind", 2),
        ("copy", "to device", 2),
        ("copy", "mark", 3),
        ("copy", "behind", 1),
        ("copy", "behind", 2),
        ("copy", "to device", 4),
        ("copy", "mark", 4),
    ]
    # What was read is a copy, and the stream that uses it says so.
    streams.present = "compute"
    assert bytes(read) == b"abcd\0\0"
    assert streams.log[-2:] == [("compute", "used", 6), ("compute", "to host", 6)]
    # Once is enough: reads that a write has waited for are not waited for again.
    streams.present = "copy"
    memory.write(Extents((10,), (4,)), b"....")
    assert streams.log[-3:] == [("copy", "behind", 4), ("copy", "to device", 4), ("copy", "mark", 5)]


def test_the_hosts_memory_has_what_was_written_when_the_write_is_back() -> None:
    from kvferry.backends.live.decoding.copies import HostMemory

    streams = FakeStreams()
    memory = HostMemory(streams.host_memory(64), streams)
    memory.write(Extents((8, 24), (8, 8)), b"12345678abcdefgh")
    assert streams.log == [("compute", "to host", 16)]
    assert bytes(memory.read(Extents((24, 8), (8, 8)))) == b"abcdefgh12345678"
    assert bytes(memory.read(Extents((26, 8), (3, 1)))) == b"cde1"
    assert bytes(memory.read(Extents((), ()))) == b""


def test_kv_comes_to_the_device_in_the_stream_that_copies() -> None:
    from kvferry.backends.live.decoding.tiers import KvTiers

    streams, places = FakeStreams(), Extents((0, 32), (16, 16))
    tiers = KvTiers(64, streams)
    streams.present = "copy"
    tiers.host.write(places, bytes(32))
    tiers.place(places, "device", None, ())
    assert streams.log[-1] == ("copy", "to device", 32)


def test_a_device_that_torch_does_not_see_is_refused_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    live = {**LIVE_DECODING["live"], "processor": "cuda:0"}
    with pytest.raises(InputError, match="live.processor: cuda:0: torch sees no CUDA device; cpu would do"):
        run_scenario(tiny(LIVE_DECODING, live=live, policies={"placement": "host"}))


def decode(model: Any, folder: Path, system: str, placement: Any, copies: Any, **policies: Any) -> SmallDecoding:
    roles = roles_of(system, placement=placement, **policies)
    decoding = SmallDecoding(model, folder, roles, context=22, batch=2, output=14, copies=copies)
    decoding.run()
    return decoding


PROGRESSIVE = {"name": "progressive", "thresholds": [24, 27, 30]}


@pytest.mark.parametrize("placement", ["device", "host", PROGRESSIVE, {**PROGRESSIVE, "overflow": "storage"}])
@pytest.mark.parametrize("system", ["specontext", "kvswap", "flexgen"])
def test_tokens_are_those_of_the_other_tiers(model: Any, tmp_path: Path, system: str, placement: Any) -> None:
    """Elastic slots, reuse buffers and layers that leave, through tensors in place of the processor's own memory."""
    policies: dict[str, Any] = {} if system == "flexgen" else {"selected_tokens": 8}
    if system == "kvswap":
        policies |= {"group_tokens": 4, "compression": 1}
    runs, streams = [], FakeStreams()
    for n, copies in enumerate((None, streams)):
        (folder := tmp_path / str(n)).mkdir()
        found = decode(model, folder, system, placement, copies, **policies)
        runs.append((found.runner.answers, torch.stack(found.logits)))
    assert runs[0][0] == runs[1][0]
    assert (runs[0][1] - runs[1][1]).abs().max() < 1e-5
    assert streams.log
    # No stream waits for a mark that was not made before.
    made = set[int]()
    for _, what, number in streams.log:
        assert what != "behind" or number in made
        made |= {number} if what == "mark" else set()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_decodes_as_the_whole_model_does(model: Any, tmp_path: Path) -> None:
    from kvferry.backends.live.decoding.copies import CudaCopies

    found = decode(model.to("cuda"), tmp_path, "specontext", PROGRESSIVE, CudaCopies("cuda"), selected_tokens=1000)
    apart = torch.stack(found.logits).cpu() - exact_logits(model.to("cpu"), found.ids, found.runner.answers)
    assert apart.abs().max() < 1e-3 * torch.stack(found.logits).std()
