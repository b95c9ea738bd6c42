"""A device profile from what other programs measured: llama-bench, fio, iperf3. On a phone, say. Needs no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvferry.calibration.fio import rates_of
from kvferry.calibration.fit import RooflineFit, fit_roofline
from kvferry.calibration.folder import write
from kvferry.calibration.json_value import JsonValue, read_json
from kvferry.calibration.llama_bench import LlamaBench, is_llama_bench, read_llama_bench
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.profile import short, storage_rows
from kvferry.calibration.profile_draft import Draft
from kvferry.calibration.tables import timed_ops
from kvferry.scenarios.faults import complaints_of
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_model
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import with_unit
from kvferry.traces.format import StoredTrace, write_trace
from kvferry.traces.importers import import_trace
from kvferry.traces.rate import RateTrace

# A bundled model is the one that was measured when their numbers of weights differ by less.
_SAME_MODEL = 0.03
# Speeds that a link had, beside the profile: a scenario's `link` may name it.
LINK = "link.csv"


@dataclass(frozen=True)
class Sources:
    """Files by the program that wrote them."""

    llama_bench: tuple[JsonValue, ...]
    fio: tuple[JsonValue, ...]
    iperf3: tuple[JsonValue, ...]
    paths: dict[str, Path]


def profile_from(
    files: Sequence[Path],
    folder: Path,
    base: DeviceSpec,
    *,
    model: str | None = None,
    name: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write a profile's folder; what the files do not tell is the base profile's, and says so.

    `model` describes what llama-bench ran; None: the bundled one with as many weights. Raises InputError, naming file
    and key, for files that are not what these programs write.
    """
    sources = recognised(files)
    draft = Draft(name or folder.resolve().name, base)
    measured: list[Measurement] = []
    fit, spec = None, None
    if sources.llama_bench:
        bench = read_llama_bench(sources.llama_bench)
        spec = model_of(bench, model, sources.llama_bench[0].place)
        say(f"llama-bench: {bench.model_type} on {bench.hardware}, taken as {spec.name}")
        fit = _processor(draft, bench, spec, base)
        measured += bench.measured
    else:
        _base_processors(draft, base)
    if sources.fio:
        reads = storage_reads(sources.fio)
        rows, depths = storage_rows(reads)
        source = f"measured: fio, random reads, {len(reads)} points of block size and depth"
        draft.put("storage", {"model": "curve", "read": rows, "queue_depth": max(depths)}, source)
        measured += reads
    link = _link(sources, folder, say)
    try:
        return write(
            folder,
            draft,
            fit,
            spec,
            measured,
            heading=f"Made by kvferry calibrate --from {', '.join(path.name for path in files)}",
            circumstances={"files": [path.name for path in files], "link": link},
        )
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, c.key))}: {c.what}" for c in complaints_of(error, DeviceSpec))
        raise InputError(f"{', '.join(map(str, files))}: no device is like that: {wrong}") from None


def recognised(files: Sequence[Path]) -> Sources:
    """Each file by its content. Raises InputError for one that none of the programs wrote."""
    found: dict[str, list[JsonValue]] = {"llama_bench": [], "fio": [], "iperf3": []}
    paths = {}
    for path in files:
        content = read_json(path)
        if is_llama_bench(content):
            found["llama_bench"].append(JsonValue(content if isinstance(content, list) else [content], str(path)))
        elif isinstance(content, dict) and "jobs" in content:
            found["fio"].append(JsonValue(content, str(path)))
        elif isinstance(content, dict) and "end" in content and ("intervals" in content or "start" in content):
            found["iperf3"].append(JsonValue(content, str(path)))
            paths[str(path)] = path
        else:
            has = f"keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else "no mapping"
            raise InputError(
                f"{path}: neither llama-bench's JSON (-o json: n_prompt, n_gen), nor fio's (--output-format=json: "
                f"jobs), nor iperf3's (-J: intervals, end); it has {has}"
            )
    return Sources(tuple(found["llama_bench"]), tuple(found["fio"]), tuple(found["iperf3"]), paths)


def model_of(bench: LlamaBench, reference: str | None, place: str) -> ModelSpec:
    """The model that llama-bench ran, with the widths of its weights and KV. Raises InputError for an unknown model."""
    if reference is not None:
        described = load_model(reference)
        if abs(described.parameters / bench.parameters - 1) > _SAME_MODEL:
            raise InputError(
                f"{place}: model_n_params is {bench.parameters / 1e9:.3g} G ({bench.model_type}); "
                f"--model {reference} has {described.parameters / 1e9:.3g} G"
            )
    else:
        alike = [m for m in map(load_model, names("model")) if abs(m.parameters / bench.parameters - 1) < _SAME_MODEL]
        if not alike:
            raise InputError(
                f"{place}: {bench.model_type} with {bench.parameters / 1e9:.3g} G weights is none of the bundled "
                f"models ({', '.join(names('model'))}); describe it in a file like theirs, and name that with --model"
            )
        family = bench.model_type.split()[0].lower()
        described = min(alike, key=lambda m: (not m.name.startswith(family), len(m.name), m.name))
    bits = 8 * bench.weight_bytes / bench.parameters
    return described.model_copy(
        update={
            "weight_bits": bits,
            "embedding_bits": bits,
            "kv_value_bytes": bench.kv_value_bytes,
            "source": f"{described.source}; widths as llama-bench ran it: {bench.model_type}",
        }
    )


def storage_reads(contents: Sequence[JsonValue]) -> list[Measurement]:
    """Random reads by block size and depth; what was measured again counts as a repetition. Raises InputError."""
    values: dict[tuple[int, int], list[float]] = {}
    for content in contents:
        for rate in rates_of(content.value, content.place):
            if rate.random:
                values.setdefault((rate.block_bytes, rate.depth), []).append(rate.bytes_per_s)
    if not values:
        raise InputError(f"{contents[0].place}: jobs: none reads at random; fio --rw=randread would")
    return [
        Measurement(
            what="random_read_fio",
            unit="byte/s",
            values=tuple(rates),
            at={"block_bytes": float(block_bytes), "depth": float(depth)},
        )
        for (block_bytes, depth), rates in sorted(values.items())
    ]


def _processor(draft: Draft, bench: LlamaBench, model: ModelSpec, base: DeviceSpec) -> RooflineFit:
    main: Any = "gpu" if bench.on_gpu else "cpu"
    key = f"processors.{main}"
    alike_kind = [spec for spec in base.processors.values() if spec.kind == main] or [base.processors[base.main]]
    rates = alike_kind[0]
    prompts = {m.at["context"] for m in bench.measured if m.what == "prefill"}
    steps = {m.at["context"] for m in bench.measured if m.what == "decode_step"}
    alike = {"attention": "gemm"} if len(prompts) < 2 else {}
    alike |= {"decode_attention": "gemv"} if len(steps) < 2 else {}
    fit = fit_roofline(model, timed_ops(bench.measured, model), rates.flop_per_s, rates.bytes_per_s, alike, fixed=False)
    source = f"fitted to llama-bench of {bench.model_type} on {bench.hardware}"
    source += f"; |fitted / measured - 1|, median: {fit.summary}"
    for kernel, other in alike.items():
        source += f". {kernel} as {other}: one depth cannot tell them apart (llama-bench -d 0,2048,8192 would)"
    efficiency = dict(fit.efficiency)
    if "attention" in efficiency:
        efficiency["sparse_attention"] = efficiency["attention"]
        source += ". sparse_attention as attention: llama-bench has none"
    peaks = f"{base.name}'s" + (
        f", raised by {fit.raised:.3g} as the measured ops are faster" if fit.raised > 1 else ""
    )
    peaks += "; only its product with efficiency is measured"
    draft.profile["main"] = main
    draft.put(f"{key}.kind", main, f"llama-bench ran on {bench.hardware}")
    draft.put(f"{key}.threads", bench.threads, "as llama-bench says")
    draft.put(f"{key}.flop_per_s", with_unit(short(rates.flop_per_s * fit.raised), "compute rate"), peaks)
    draft.put(f"{key}.bytes_per_s", with_unit(short(rates.bytes_per_s * fit.raised), "rate"), peaks)
    draft.put(f"{key}.efficiency", {kernel: short(share) for kernel, share in efficiency.items()}, source)
    for cost in ("layer_s", "dispatch_s"):
        draft.put(
            f"{key}.{cost}", "0 s", "inside efficiency: whole passes of one model do not tell it from reading weights"
        )
    for state in ("idle_w", "active_w"):
        watts = with_unit(getattr(rates, state), "power")
        draft.put(f"{key}.{state}", watts, f"not measured; {base.name}")
    table = f"llama-bench of {bench.model_type}: prompts and generation by depth, means; see calibration.json"
    draft.put(f"{key}.measured", "measured", table)
    return fit


def _base_processors(draft: Draft, base: DeviceSpec) -> None:
    content = base.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    for processor, value in content["processors"].items():
        value.pop("measured", None)
        draft.put(f"processors.{processor}", value, f"not measured; {base.name}")
    draft.profile["main"] = base.main


def _link(sources: Sources, folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Write the link that iperf3 measured as a trace beside the profile."""
    if not sources.iperf3:
        return None
    if len(sources.iperf3) > 1:
        raise InputError(f"{sources.iperf3[1].place}: a second file of iperf3; a link has one")
    content = sources.iperf3[0]
    if content.get("error", None).value:
        raise InputError(f"{content.place}: iperf3 failed: {str(content.key('error').value)[:200]}")
    trace: RateTrace = import_trace(sources.paths[content.place], "iperf3-json", drop_slow_start=True)
    rtt_s = _rtt_s(content)
    write_trace(folder / LINK, StoredTrace("bandwidth", trace, {"source": "iperf3"}))
    rate = f"{trace.mean() * 8e-6:.4g} Mbit/s"
    rtt = "" if rtt_s is None else f", rtt: {rtt_s * 1e3:.3g} ms"
    say(f"iperf3: {rate} on average, as a trace: link: {{trace: {folder / LINK}{rtt}}}")
    return {"trace": LINK, "mean_bytes_per_s": trace.mean(), "rtt_s": rtt_s}


def _rtt_s(content: JsonValue) -> float | None:
    """TCP's round trip on the sender's side; None where iperf3 does not report it."""
    streams = content.key("end").get("streams", [])
    for stream in streams.items():
        rtt = stream.get("sender", {}).get("mean_rtt", None)
        if rtt.value:
            return rtt.number(least=1, most=1e9) / 1e6
    return None
