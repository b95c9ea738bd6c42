"""What llama-bench says in JSON (-o json or -o jsonl): prompt and generation speeds of one model at several depths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.calibration.json_value import JsonValue
from kvferry.calibration.measurement import Measurement
from kvferry.specs.errors import InputError

# What the numbers must have in common to be of one profile.
_CONFIGURATION = ("model_type", "model_n_params", "backends", "n_threads", "n_gpu_layers", "type_k", "type_v")
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32}
# A weight is hardly wider than 64 bits.
_MOST_WEIGHT_BYTES = 8.0
_KV_BYTES |= {"q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32}


@dataclass(frozen=True)
class LlamaBench:
    """`prefill` and `decode_step` measurements, as of the live backend, and of what."""

    measured: tuple[Measurement, ...]
    model_type: str
    parameters: float
    weight_bytes: float
    kv_value_bytes: float
    on_gpu: bool
    threads: int
    hardware: str


def read_llama_bench(contents: Sequence[JsonValue]) -> LlamaBench:
    """Reads one file or several together. Raises InputError, naming file and key, when they are not of one model and
    setting, or hold neither prompts nor generation."""
    results = [result for content in contents for result in content.items()]
    if not results:
        raise InputError(f"{contents[0].place}: holds no result; llama-bench was stopped before its first")
    first = results[0]
    for result in results:
        for key in _CONFIGURATION:
            mine, others = result.get(key, None).value, first.get(key, None).value
            if mine != others:
                raise InputError(
                    f"{result.place}: {key} is {mine!r:.60}, and {others!r:.60} in {first.place}: a profile is of one "
                    f"model and one setting; run llama-bench with one of them, or give the results apart"
                )
    measured = [m for result in results if (m := _measurement(result)) is not None]
    if not measured:
        raise InputError(f"{first.place}: neither prompts (-p) nor generation (-n) alone; -pg runs both in one")
    backend = str(first.get("backends", "CPU").value)
    layers = first.get("n_gpu_layers", 0)
    on_gpu = backend not in ("CPU", "BLAS", "") and layers.number(least=-1e6) != 0
    parameters = first.key("model_n_params").number(least=1)
    return LlamaBench(
        measured=_merged(measured),
        model_type=str(first.key("model_type").value)[:100],
        parameters=parameters,
        weight_bytes=first.key("model_size").number(least=1, most=_MOST_WEIGHT_BYTES * parameters),
        kv_value_bytes=(_kv_bytes(first, "type_k") + _kv_bytes(first, "type_v")) / 2,
        on_gpu=on_gpu,
        threads=int(first.get("n_threads", 1).number(least=1, most=1024)),
        hardware=" ".join(str(first.get("gpu_info" if on_gpu else "cpu_info", "").value).split())[:100] or "a device",
    )


def is_llama_bench(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else content
    return isinstance(first, dict) and "n_prompt" in first and "n_gen" in first


def _measurement(result: JsonValue) -> Measurement | None:
    """A prompt after some depth, or tokens generated after it; None when it is both in one."""
    prompt, generated = (int(result.key(key).number(most=1e7)) for key in ("n_prompt", "n_gen"))
    depth = int(result.get("n_depth", 0).number(most=1e8))
    if bool(prompt) == bool(generated):
        return None
    samples = result.get("samples_ns", None)
    if samples.value:
        seconds = [sample.number(least=1, most=1e15) / 1e9 for sample in samples.items()]
    else:
        seconds = [result.key("avg_ns").number(least=1, most=1e15) / 1e9]
    if prompt:
        at = {"context": float(depth), "tokens": float(prompt)}
        return Measurement(what="prefill", unit="s", values=tuple(seconds), at=at)
    # A token sees what was generated before it: half of that on average.
    at = {"context": float(depth + generated // 2)}
    return Measurement(what="decode_step", unit="s", values=tuple(s / generated for s in seconds), at=at)


def _merged(measured: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Points that were measured twice become one with the repetitions of both."""
    points: dict[tuple[Any, ...], Measurement] = {}
    for m in measured:
        key = (m.what, *m.at.items())
        before = points[key].values if key in points else ()
        points[key] = Measurement(what=m.what, unit=m.unit, at=m.at, values=before + m.values)
    return tuple(points.values())


def _kv_bytes(result: JsonValue, key: str) -> float:
    kind = str(result.get(key, "f16").value)
    if kind not in _KV_BYTES:
        raise InputError(f"{result.place}: {key} is {kind!r:.40}; known: {', '.join(_KV_BYTES)}")
    return _KV_BYTES[kind]
