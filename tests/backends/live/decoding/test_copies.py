"""KV in the memory of a device with streams: what waits for what, by a fake one and on a real one."""

import itertools
import math
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from decoding import roles_of
from hypothesis import given
from hypothesis import strategies as st
from small_decoding import SmallDecoding, exact_logits
from tiny import LIVE_DECODING, tiny

from kvferry.machine.ops import Extents
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError, OutOfMemory
from kvferry.specs.tier import Tier

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class FakeStreams:
    """A Copies over the CPU's memory. ``log``: what each stream was given, in order; marks are numbered. The device has
    `device_bytes`."""

    def __init__(self, device_bytes: float = math.inf) -> None:
        self.present, self.log, self.marks = "compute", list[tuple[str, str, int]](), 0
        self.free_bytes = device_bytes

    def memory_of(self, tier: Tier) -> Callable[[int], Any]:
        return self._host_memory if tier == "host" else self._device_memory

    def _device_memory(self, n_bytes: int) -> Any:
        if n_bytes > self.free_bytes:
            raise OutOfMemory(f"the device has no {n_bytes} B")
        self.free_bytes -= n_bytes
        memory = torch.zeros(n_bytes, dtype=torch.uint8)
        weakref.finalize(memory, self._freed, n_bytes)
        return memory

    def _freed(self, n_bytes: int) -> None:
        self.free_bytes += n_bytes

    def _host_memory(self, n_bytes: int) -> Any:
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def staged(self, n_bytes: int, fill: Callable[[Any], None]) -> Any:
        self.log.append((self.present, "staged", n_bytes))
        fill(into := torch.empty(n_bytes, dtype=torch.uint8))
        return into

    def settle(self) -> None:
        self.log.append((self.present, "settle", 0))

    def said(self, *what: str) -> list[tuple[str, str, int]]:
        """The log's entries of these kinds."""
        return [one for one in self.log if one[1] in what]

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

    def to_host(self, tensor: Any, into: Any = ()) -> Any:
        self.log.append((self.present, "to host", len(tensor)))
        for there, at in into:
            self.log.append((self.present, "into", len(there)))
            there.copy_(tensor[at : at + len(there)])
        return tensor


def test_reads_wait_for_the_copy_and_copies_for_the_reads_by_hand() -> None:
    from kvferry.backends.live.decoding.tensor_tiers import DeviceMemory

    streams = FakeStreams()
    memory = DeviceMemory(100, streams, regions=2)
    # The copy stream brings 4 B into the first region, with mark 2 behind; mark 1 is that of the place's number, which
    # goes before. The compute stream reads them, and 2 B of the second region, with mark 4 behind.
    streams.present = "copy"
    memory.write(Extents((10,), (4,)), b"abcd")
    streams.present = "compute"
    read = memory.read(Extents((10, 60), (4, 2)))
    # Both regions were read before the copy stream writes there again (5 and 6); the second had not been written.
    streams.present = "copy"
    memory.write(Extents((60,), (2,)), b"xy")
    memory.write(Extents((10,), (4,)), b"ABCD")
    waits = [one for one in streams.said("mark", "behind", "to device") if one not in NUMBERS]
    assert waits == [
        ("copy", "to device", 4),
        ("copy", "mark", 2),
        ("compute", "behind", 2),
        ("compute", "mark", 4),
        ("copy", "to device", 2),
        ("copy", "behind", 4),
        ("copy", "mark", 5),
        ("copy", "to device", 4),
        ("copy", "behind", 2),
        ("copy", "behind", 4),
        ("copy", "mark", 6),
    ]
    # What was read is a copy, and the stream that uses it says so.
    streams.present = "compute"
    assert bytes(read) == b"abcd\0\0"
    assert streams.log[-2:] == [("compute", "used", 6), ("compute", "to host", 6)]
    # Once is enough: reads that a write has waited for are not waited for again.
    streams.present = "copy"
    memory.write(Extents((10,), (4,)), b"....")
    waits = [one for one in streams.said("behind", "mark") if one not in NUMBERS]
    assert waits[-2:] == [("copy", "behind", 6), ("copy", "mark", 7)]


# Marks behind uploads of the places' numbers, in the test above.
NUMBERS = {(stream, what, mark) for stream in ("copy", "compute") for what in ("mark", "behind") for mark in (1, 3)}


def test_numbers_that_are_alike_for_all_layers_are_sent_once() -> None:
    from kvferry.backends.live.decoding.tensor_tiers import DeviceMemory

    streams = FakeStreams()
    memory = DeviceMemory(3 * 64, streams, regions=3, layers=True)
    for layer in range(3):
        memory.write(Extents((64 * layer,), (64,)), bytes(range(64 * layer, 64 * layer + 64)))
    assert len(streams.said("staged")) == 1
    streams.log.clear()
    for step in ([5, 0, 2], [1, 7, 3]):
        for layer in range(3):
            places = np.array(step) * 8 + 64 * layer
            read = memory.read(Extents(places, np.full(3, 8)))
            assert bytes(read) == b"".join(bytes(range(at, at + 8)) for at in places.tolist())
    # Three numbers of 8 B for each step.
    assert [n_bytes for _, _, n_bytes in streams.said("staged")] == [24, 24]


def test_a_layer_takes_memory_from_its_first_write_until_it_leaves() -> None:
    from kvferry.backends.live.decoding.tiers import KvTiers

    # Four layers of 64 B, and room for two of them.
    streams = FakeStreams(device_bytes=128)
    tiers = KvTiers(256, streams, 4, layers=True)
    tiers.have_ready(("device", "host"))
    layers = [Extents((64 * n,), (64,), placed=(n,)) for n in range(4)]
    for n in range(2):
        tiers.device.write(layers[n], bytes([n]) * 64)
    with pytest.raises(OutOfMemory, match="no 64 B"):
        tiers.device.write(layers[2], bytes(64))
    tiers.place(layers[0], "host", None, ())
    assert (tiers.device.n_bytes, tiers.host.n_bytes) == (64, 64)  # type: ignore[union-attr]
    tiers.device.write(layers[2], b"c" * 64)
    assert bytes(tiers.device.read(layers[1]))[:1] == bytes([1])
    # And back, behind the one that makes room.
    assert bytes(tiers.source(layers[1], None, ())) == bytes([1]) * 64
    tiers.place(layers[0], "device", None, ())
    assert bytes(tiers.device.read(layers[0])) == bytes(64)
    assert (tiers.device.n_bytes, tiers.host.n_bytes) == (128, 0)  # type: ignore[union-attr]


ranges = st.lists(st.tuples(st.integers(0, 190), st.integers(0, 40)), max_size=6)


@given(st.integers(1, 7), st.sampled_from([1, 4, 8, 24]), st.lists(ranges, max_size=4))
def test_any_ranges_of_any_regions_come_back_as_they_went(regions: int, unit: int, writes: list[Any]) -> None:
    from kvferry.backends.live.decoding.tensor_tiers import DeviceMemory, HostMemory

    streams, size = FakeStreams(), 230 * unit
    memories = DeviceMemory(size, streams, regions), HostMemory(size, streams, regions)
    plain = bytearray(size)
    for n, places in enumerate([*writes, [(0, 230)]]):
        extents = Extents([at * unit for at, _ in places], [length * unit for _, length in places])
        content = (bytes(range(256)) * (1 + extents.n_bytes // 256))[n : n + extents.n_bytes]
        for memory in memories:
            assert bytes(memory.read(extents)) == b"".join(plain[at : at + length] for at, length in extents)
        apart = all(a + b <= c for (a, b), (c, _) in pairwise(sorted(place for place in extents if place[1])))
        if not apart:
            # What lies in both of two ranges is whichever came last.
            continue
        for memory in memories:
            memory.write(extents, content)
        for at, (offset, length) in zip(np.cumsum(extents.arrays[1]) - extents.arrays[1], extents, strict=True):
            plain[offset : offset + length] = content[at : at + length]
    whole = Extents((0,), (size,))
    assert bytes(memories[0].read(whole)) == bytes(memories[1].brought(whole)) == plain


def test_the_hosts_memory_has_what_was_written_when_the_write_is_back() -> None:
    from kvferry.backends.live.decoding.tensor_tiers import HostMemory

    streams = FakeStreams()
    memory = HostMemory(64, streams)
    memory.write(Extents((8, 24), (8, 8)), b"12345678abcdefgh")
    assert streams.log == [("compute", "to host", 16)]
    assert bytes(memory.read(Extents((24, 8), (8, 8)))) == b"abcdefgh12345678"
    assert bytes(memory.read(Extents((26, 8), (3, 1)))) == b"cde1"
    assert bytes(memory.read(Extents((), ()))) == b""


def test_kv_comes_to_the_device_in_the_stream_that_copies() -> None:
    from kvferry.backends.live.decoding.tiers import KvTiers

    streams = FakeStreams()
    tiers, places = KvTiers(64, streams), Extents((0, 32), (16, 16), placed=(0,))
    streams.present = "copy"
    tiers.host.write(places, bytes(32))
    tiers.place(places, "device", None, ())
    assert streams.said("to device")[-1] == ("copy", "to device", 32)
    # What is only brought to be attended to waits for nothing on its way.
    brought = Extents((0, 32), (16, 16))
    streams.log.clear()
    assert bytes(tiers.place(brought, "device", None, ())) == bytes(32)  # type: ignore[arg-type]
    assert streams.said("staged") == [("copy", "staged", 32)]


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
    # What was made ready is there before the first op.
    assert streams.log[0] == ("compute", "settle", 0)
    # Layers that have left, or never came, take no memory of the device.
    layer_bytes = found.plan.layout.file_bytes // 3
    assert found.tiers.device.n_bytes == found.flow.now.tiers.count("device") * layer_bytes
    assert found.tiers.host.n_bytes == found.flow.now.tiers.count("host") * layer_bytes
    # No stream waits for a mark that was not made before.
    made = set[int]()
    for _, what, number in streams.log:
        assert what != "behind" or number in made
        made |= {number} if what == "mark" else set()


def test_kv_that_stays_on_the_device_does_not_pass_through_the_host(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvferry.backends.live.decoding.block_format import BlockFormat

    packed: list[Any] = []
    monkeypatch.setattr(BlockFormat, "packed", lambda *blocks: packed.append(blocks))
    decode(model, tmp_path, "specontext", "device", FakeStreams(), selected_tokens=8)
    assert not packed


def test_a_device_without_memory_left_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.decoding.tiers import TierMemory

    def write(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ...")

    monkeypatch.setattr(TierMemory, "write", write)
    run = run_scenario(tiny(LIVE_DECODING, policies={"placement": "device"}))
    assert (run.outcome, run.why) == (
        "out_of_memory",
        "no memory is left: CUDA out of memory",
    )


PINNING = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call"


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize(
    ("what", "placement", "error"),
    [
        ("staged", "host", RuntimeError(PINNING)),
        ("staged", "host", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")),
        ("to_host", "host", RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")),
        ("staged", "device", RuntimeError(PINNING)),
        ("to_device", "device", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else one,
)
def test_memory_that_cannot_be_pinned_or_copied_into_is_an_outcome(
    what: str, placement: str, error: Exception, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvferry.backends.live.decoding import parts
    from kvferry.backends.live.decoding.tiers import KvTiers

    streams, calls = FakeStreams(), itertools.count(1)
    really = getattr(streams, what)

    def lacking(*arguments: Any) -> Any:
        if next(calls) >= nth:
            raise error
        return really(*arguments)

    monkeypatch.setattr(streams, what, lacking)
    monkeypatch.setattr(parts, "KvTiers", lambda n_bytes, _, *of, **more: KvTiers(n_bytes, streams, *of, **more))
    run = run_scenario(tiny(LIVE_DECODING, policies={"placement": placement}))
    assert run.outcome == "out_of_memory", run.why
    assert run.why.startswith("no memory is left: ")
    # Torch's further lines are of no use.
    assert "\n" not in run.why


def test_memory_that_cannot_be_pinned_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.decoding import copies

    def empty(n_bytes: int, *, pin_memory: bool, **_: Any) -> Any:
        raise RuntimeError(PINNING if n_bytes > 2**20 else "another fault")

    monkeypatch.setattr(copies.torch, "empty", lambda *size, **more: torch.zeros(*size, dtype=torch.uint8))
    stage = copies._Stage()
    monkeypatch.setattr(copies.torch, "empty", empty)
    with pytest.raises(
        OutOfMemory, match="the host has no 2.10 MB of memory to pin for copies: CUDA error: out of memory"
    ):
        stage.of(2**20 + 1)
    with pytest.raises(RuntimeError, match="another fault"):
        stage.of(2**20)


def test_long_ranges_go_straight_to_the_host_and_short_ones_by_rows() -> None:
    from kvferry.backends.live.decoding.tensor_tiers import HostMemory

    streams = FakeStreams()
    memory = HostMemory(2**18, streams)
    data = torch.arange(2**17, dtype=torch.int64).to(torch.uint8)
    # Two ranges of 64 KiB, the second in front of the first.
    memory.write(Extents((2**17, 0), (2**16, 2**16)), data)
    assert streams.log == [("compute", "to host", 2**17), *[("compute", "into", 2**16)] * 2]
    assert bytes(memory.read(Extents((2**17, 0), (2**16, 2**16)))) == bytes(data.numpy())
    streams.log.clear()
    memory.write(Extents((2**16, 2**18 - 8), (8, 8)), data[:16])
    assert streams.log == [("compute", "to host", 16)]
    assert bytes(memory.read(Extents((2**16,), (8,)))) == bytes(range(8))


def written(device: str) -> Any:
    """One layer's KV blocks of one row: 4 blocks of 8 B, each in 512 B."""
    from kvferry.backends.live.decoding.block_format import BlockFormat
    from kvferry.backends.live.decoding.written import WrittenLayers
    from kvferry.layouts.layout import Layout

    layout = Layout(layers=1, sequences=1, blocks=4, block_bytes=8, heads=1)
    format = BlockFormat(layout, group_tokens=1, kv_heads=1, head_dim=2, dtype=torch.float16)
    return WrittenLayers(format, [torch.zeros(1, 4, 2, 1, 1, 2, dtype=torch.float16, device=device)], [0])


def test_what_a_device_holds_for_another_tier_is_given_back_and_bounded() -> None:
    from kvferry.backends.live.decoding.tiers import KvTiers

    whole = Extents((0,), (2048,), placed=(0,))
    tiers, layers = KvTiers(2048, FakeStreams()), [written("meta") for _ in range(3)]
    packing = Thread(target=lambda: [tiers.pack(one) for one in layers], daemon=True)
    packing.start()
    # Two layers may be on their way: the third waits for the first to have left.
    packing.join(0.3)
    assert packing.is_alive()
    (there,) = layers[0].made
    assert (there.device.type, len(there)) == ("meta", 2048)
    tiers._has_left(whole, layers[0])
    packing.join(60)
    assert not packing.is_alive()
    assert not layers[0].made
    # What lies in the host's own memory is bounded by nothing.
    for _ in range(4):
        tiers.pack(written("cpu"))


def test_a_run_has_streams_of_its_processor_and_begins_when_all_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.backends.live.decoding import parts
    from kvferry.backends.live.engine.environment import WallClockEnvironment

    asked, begun = list[str](), list[None]()
    restart = WallClockEnvironment.restart
    monkeypatch.setattr(parts, "streams_of", lambda processor: asked.append(processor))
    monkeypatch.setattr(WallClockEnvironment, "restart", lambda env: (begun.append(None), restart(env))[1])
    for policies in ({"placement": "host"}, {}):
        assert run_scenario(tiny(LIVE_DECODING, policies=policies)).outcome == "done"
    assert asked == ["cpu", "cpu"]
    assert len(begun) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_decodes_as_the_whole_model_does(model: Any, tmp_path: Path) -> None:
    from kvferry.backends.live.decoding.copies import CudaCopies

    found = decode(model.to("cuda"), tmp_path, "specontext", PROGRESSIVE, CudaCopies("cuda"), selected_tokens=1000)
    apart = torch.stack(found.logits).cpu() - exact_logits(model.to("cpu"), found.ids, found.runner.answers)
    assert apart.abs().max() < 1e-3 * torch.stack(found.logits).std()
