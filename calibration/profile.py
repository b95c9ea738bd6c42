"""From what was measured to a device profile: each number with where it comes from."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvferry.calibration.fit import RooflineFit, fit_roofline, fixed_and_rate
from kvferry.calibration.measurement import Measurement, only
from kvferry.calibration.profile_draft import Draft
from kvferry.calibration.settings import Settings
from kvferry.calibration.tables import errors_off_grid, pooled, timed_ops
from kvferry.machine.ops import FeedForward
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import DeviceSpec, ProcessorSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import with_unit


def profile(
    name: str,
    settings: Settings,
    model: ModelSpec,
    measured: Sequence[Measurement],
    surroundings: Mapping[str, Any],
    base: DeviceSpec,
) -> tuple[Draft, RooflineFit | None]:
    """What was not measured is the base profile's, and says so. `surroundings` are `environment()` and the memory."""
    draft = Draft(name, base)
    main = "gpu" if settings.device.startswith("cuda") else "cpu"
    draft.profile["main"] = main
    fit = _processor(draft, f"processors.{main}", main, settings, model, measured, base)
    _memory(draft, settings, measured, surroundings)
    _decompressor(draft, settings, measured)
    _network(draft, measured)
    _storage(draft, [m for m in measured if m.what == "random_read"])
    _contention(draft, main, settings, measured)
    _power(draft, main, measured)
    return draft, fit


def average_of(measurement: Measurement, what: str) -> str:
    return f"measured: {what}; mean of {len(measurement.values)}, spread {measurement.spread:.0%}"


def _processor(
    draft: Draft,
    key: str,
    main: str,
    settings: Settings,
    model: ModelSpec,
    measured: Sequence[Measurement],
    base: DeviceSpec,
) -> RooflineFit | None:
    draft.put(f"{key}.kind", main, "what torch ran on")
    draft.put(f"{key}.threads", settings.threads, "as asked for: CPU threads of one op")
    in_place = "; those of decoding with KV on storage beside their reads" if only(measured, "select") else ""
    table = (
        f"seconds of {model.name}'s ops on the idle device{in_place}, {settings.attention} attention, "
        f"{settings.threads} threads, {8 * model.kv_value_bytes:g} bits; means, see calibration.json"
    )
    products, copies = only(measured, "matrix_product"), only(measured, "memory_copy")
    if not products or not copies:
        rates = base.processors[base.main]
        draft.put(f"{key}.flop_per_s", with_unit(rates.flop_per_s, "compute rate"), f"not measured; {base.name}")
        draft.put(f"{key}.bytes_per_s", with_unit(rates.bytes_per_s, "rate"), f"not measured; {base.name}")
        _dispatch(draft, key, measured)
        draft.put(f"{key}.measured", "measured", table)
        return None
    flop_per_s, bytes_per_s = products[0].typical, copies[0].typical
    fit = fit_roofline(model, timed_ops(measured, model), flop_per_s, bytes_per_s)
    raised = f"; raised by {fit.raised:.2f}, as some ops are faster" if fit.raised > 1 else ""
    size, copied = int(products[0].at["rows"]), int(copies[0].at["bytes"]) >> 20
    flops = f"a product of two {size} x {size} matrices{raised}"
    draft.put(
        f"{key}.flop_per_s", with_unit(short(flop_per_s * fit.raised), "compute rate"), average_of(products[0], flops)
    )
    moved = f"reads and writes of a copy of {copied} MiB{raised}"
    draft.put(f"{key}.bytes_per_s", with_unit(short(bytes_per_s * fit.raised), "rate"), average_of(copies[0], moved))
    fitted = (
        f"fitted, with layer_s, to the measured ops of {model.name}; |fitted / measured - 1|, median: {fit.summary}"
    )
    if settings.attention == "dense":
        fitted += ". sparse_attention is dense attention here: blocks that do not matter are computed all the same"
    if only(measured, "mask_written_out"):
        fitted += ". FlexAttention did not compile here: masks were written out for dense attention, and save nothing"
    draft.put(f"{key}.efficiency", {kernel: short(share) for kernel, share in fit.efficiency.items()}, fitted)
    draft.put(f"{key}.layer_s", with_unit(short(fit.layer_s), "time"), "fitted with efficiency")
    _kernels(draft, key, bytes_per_s * fit.raised, measured)
    _dispatch(draft, key, measured)
    draft.put(f"{key}.measured", "measured", table)
    processor = ProcessorSpec.model_validate(draft.profile["processors"][main], context={"from_file": True})
    _layer_of_decoding(draft, key, Roofline(processor, model), measured)
    off = errors_off_grid(measured, model, processor)
    if off:
        between = f"between grid points off by {np.median(off):.0%} (median of {len(off)}; worst {max(off):.0%})"
        draft.tell(f"{key}.measured", f"{table}; {between}")
    return fit


def _kernels(draft: Draft, key: str, bytes_per_s: float, measured: Sequence[Measurement]) -> None:
    """Rates of choosing KV, which no op of a load has."""
    single = {"scoring": "one query against each head's keys", "gather": "chosen tokens' keys, read and written"}
    for kernel, what in single.items():
        for one in only(measured, kernel):
            share = min(1.0, one.at["bytes"] / one.typical / bytes_per_s)
            moved = f"{one.at['bytes'] / 2**20:,.0f} MiB of {what}"
            draft.put(f"{key}.efficiency.{kernel}", short(share), average_of(one, moved))
    ranked = only(measured, "rank")
    if ranked:
        _, rate = fixed_and_rate([(m.at["rows"] * m.at["scores"], m.typical) for m in ranked])
        rows = ", ".join(f"{m.at['rows']:.0f} x {m.at['scores']:,.0f} in {m.typical * 1e3:.3g} ms" for m in ranked)
        draft.put(f"{key}.topk_per_s", with_unit(short(rate), "value rate"), f"measured: softmax and top-k of {rows}")


def _layer_of_decoding(draft: Draft, key: str, roofline: Roofline, measured: Sequence[Measurement]) -> None:
    """What the roofline says of a layer that is decoded with its KV on storage; the tables have it all."""
    layers, kept = only(measured, "feed_forward"), pooled(measured, "bookkeep", ("blocks",))
    if not layers or len(kept) < 2:
        return
    fixed_s, blocks_per_s = fixed_and_rate([(blocks, seconds) for (blocks,), seconds in kept.items()])
    more_s = [m.typical - roofline.cost(FeedForward(m.at["batch"])).duration_s for m in layers]
    eager_s = max(0.0, float(np.mean(more_s)) + fixed_s)
    what = (
        "decoding with KV on storage, measured in place: FeedForward over its roofline, Bookkeep without its KV blocks"
    )
    draft.put(f"{key}.eager_layer_s", with_unit(short(eager_s), "time"), what)
    draft.put(f"{key}.block_s", with_unit(short(1 / blocks_per_s), "time"), "measured in place: Bookkeep, by KV blocks")


def _dispatch(draft: Draft, key: str, measured: Sequence[Measurement]) -> None:
    for dispatch in only(measured, "dispatch"):
        source = average_of(dispatch, "round trip of an empty op through the live machine")
        draft.put(f"{key}.dispatch_s", with_unit(short(dispatch.typical), "time"), source)


def _memory(draft: Draft, settings: Settings, measured: Sequence[Measurement], surroundings: Mapping[str, Any]) -> None:
    host, free = surroundings.get("memory_bytes"), surroundings.get("free_memory_bytes")
    device = surroundings.get("device_memory_bytes")
    on_cuda = settings.device.startswith("cuda")
    apart = on_cuda and not surroundings.get("device_unified")
    whose = "a GPU with memory of its own" if apart else "a GPU in the memory of the CPU" if on_cuda else "a CPU's"
    draft.put("memory.unified", not apart, whose)
    if device and (apart or not host):
        draft.put("memory.capacity_bytes", with_unit(device, "size"), "as the driver says")
        draft.put("memory.reserved_bytes", "0 B", "nothing else was on the GPU")
    elif host:
        draft.put("memory.capacity_bytes", with_unit(host, "size"), "as the system says")
        reserved = f"{(host - (free or host)) / host:.0%} were taken when the calibration began"
        draft.put("memory.reserved_bytes", with_unit(short(host - (free or host)), "size"), reserved)
    if host and apart:
        draft.put("memory.host_capacity_bytes", with_unit(host, "size"), "as the system says")
    for copy in only(measured, "memory_copy"):
        rate = draft.profile["processors"]["gpu" if on_cuda else "cpu"].get("bytes_per_s")
        draft.put("memory.bytes_per_s", rate, average_of(copy, "as the processor's"))
    _gathered(draft, measured)
    placing = only(measured, "placing")
    if placing:
        fixed_s, rate = fixed_and_rate([(m.at["bytes"], m.typical) for m in placing])
        what = f"measured in the same streams: decoded KV put where the session keeps it, by size: {_points(placing)}"
        draft.put("memory.copy_bytes_per_s", with_unit(short(rate), "rate"), what)
        draft.put("memory.copy_latency_s", with_unit(short(fixed_s), "time"), "fitted with copy_bytes_per_s")
    elif copied := only(measured, "copy to the device, pinned"):
        fixed_s, rate = fixed_and_rate([(m.at["bytes"], m.typical) for m in copied])
        what = f"measured: copies of the host's pinned memory, by bytes: {_points(copied)}{_elsewhere(measured)}"
        draft.put("memory.copy_bytes_per_s", with_unit(short(rate), "rate"), what)
        draft.put("memory.copy_latency_s", with_unit(short(fixed_s), "time"), "fitted with copy_bytes_per_s")
    elif apart and draft.base.memory.copy_bytes_per_s is None:
        why = f"not measured; {draft.base.name} has no copy path: the rate of its memory"
        draft.put("memory.copy_bytes_per_s", with_unit(draft.base.memory.bytes_per_s, "rate"), why)


def _gathered(draft: Draft, measured: Sequence[Measurement]) -> None:
    pieces = only(measured, "pieces to the device")
    if pieces:
        rates = [
            {
                "range_bytes": with_unit(m.at["piece_bytes"], "size"),
                "bytes_per_s": with_unit(short(m.at["bytes"] / m.typical), "rate"),
            }
            for m in pieces
        ]
        total = max(m.at["bytes"] for m in pieces) / 2**20
        what = f"measured: pieces of {total:,.0f} MiB brought together by one op's threads, then copied at once"
        draft.put("memory.gathered", rates, what)


def _elsewhere(measured: Sequence[Measurement]) -> str:
    """Returns the rates of copies that the profile has no number for."""
    others = ("copy to the device, pageable", "copy to the host, pinned", "copy to the host, pageable")
    kinds = [(what, only(measured, what)[-1:]) for what in others]
    rates = [f"{what}: {m.at['bytes'] / m.typical / 1e9:.3g} GB/s" for what, found in kinds for m in found]
    rates += [
        f"pieces of {m.at['piece_bytes']:,.0f} B brought together first: {m.at['bytes'] / m.typical / 1e9:.3g} GB/s"
        for m in only(measured, "pieces to the device")
    ]
    return "".join(f"; {rate}" for rate in rates)


def _decompressor(draft: Draft, settings: Settings, measured: Sequence[Measurement]) -> None:
    for key, codec in (("decompressor", "huffman"), ("decompressor.codecs.cachegen", "cachegen")):
        pieces = only(measured, f"decode {codec}")
        if pieces:
            fixed_s, rate = fixed_and_rate([(m.at["values"], m.typical) for m in pieces])
            what = f"measured: {codec} pieces in a stream, decoded by {settings.workers} workers: {_points(pieces)}"
            draft.put(f"{key}.values_per_s", with_unit(short(rate), "value rate"), what)
            draft.put(f"{key}.piece_s", with_unit(short(fixed_s), "time"), "fitted with values_per_s")
            if len(pieces) > 2:  # what a line through them leaves out
                sizes = [{"values": m.at["values"], "seconds": with_unit(short(m.typical), "time")} for m in pieces]
                draft.put(f"{key}.pieces", sizes, "as measured: see values_per_s")
            draft.put("decompressor.workers", settings.workers, "as asked for")


def _network(draft: Draft, measured: Sequence[Measurement]) -> None:
    for rate in only(measured, "receive"):
        source = average_of(rate, "chunks from the server on loopback, eight fetches under way, each checked")
        draft.put("network.bytes_per_s", with_unit(short(rate.typical), "rate"), source)
    for request in only(measured, "request"):
        source = average_of(request, "a fetch of a few bytes from the server on loopback")
        draft.put("network.request_s", with_unit(short(request.typical), "time"), source)


def storage_rows(reads: Sequence[Measurement]) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows of a curve, and their depths, ascending."""
    by_depth: dict[int, list[Measurement]] = {}
    for read in sorted(reads, key=lambda read: (read.at["depth"], read.at["block_bytes"])):
        by_depth.setdefault(int(read.at["depth"]), []).append(read)
    rows = [
        {
            "depth": depth,
            "block_bytes": [with_unit(read.at["block_bytes"], "size") for read in row],
            "bytes_per_s": [with_unit(short(read.typical), "rate") for read in row],
        }
        for depth, row in by_depth.items()
    ]
    return rows, list(by_depth)


def _storage(draft: Draft, reads: Sequence[Measurement]) -> None:
    if reads:
        rows, depths = storage_rows(reads)
        spread = max(read.spread for read in reads)
        source = f"measured: random reads past the page cache, means; largest spread {spread:.0%}: see storage.csv"
        draft.put("storage", {"model": "curve", "read": rows, "queue_depth": max(depths)}, source)


def _contention(draft: Draft, main: str, settings: Settings, measured: Sequence[Measurement]) -> None:
    slowdown: dict[str, dict[str, float]] = {}
    names = {"compute": main, "decompress": "decompress", "copy": "copy", "link": "link"}
    rates = []
    for path in ("compute", "decompress", "copy"):
        for other in names:
            for ratio in only(measured, f"{path} beside {other}"):
                rates.append(ratio.at["link_bytes_per_s"])
                # What is not slower beside others was measured while others were slower by chance.
                if ratio.typical > 1:
                    slowdown.setdefault(names[path], {})[names[other]] = short(ratio.typical)
    if rates:
        source = (
            "measured in turns, alone and beside the other at work, in a load without a plan; link at the rate given"
        )
        value = {"slowdown": slowdown, "link_bytes_per_s": with_unit(rates[0], "rate")}
        draft.put("contention", value, source)


def _power(draft: Draft, main: str, measured: Sequence[Measurement]) -> None:
    why = "nothing on this device tells what it draws" if only(measured, "no_power_meter") else "not measured"
    watts = {}
    for measurement in measured:
        if measurement.what.startswith("power "):
            _, state, component, _, source = measurement.what.split(maxsplit=4)
            why = f"{source} does not tell what it draws"
            if component == main:
                watts[state] = with_unit(short(measurement.typical), "power"), f"measured: {source}, two seconds"
    for state in ("idle", "active"):
        not_counted = "0 W", f"{why}: energy of this processor is not counted"
        draft.put(f"processors.{main}.{state}_w", *watts.get(state, not_counted))


def _points(measurements: Sequence[Measurement]) -> str:
    parts = (f"{next(iter(m.at.values())):,.0f} in {m.typical * 1e3:.3g} ms" for m in measurements)
    return ", ".join(parts)


def short(number: float) -> float:
    """What a measurement can tell: four digits."""
    return float(f"{number:.4g}")
