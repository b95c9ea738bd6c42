"""Numbers for people: three significant digits and a unit that fits the size."""

import math
from collections.abc import Callable, Sequence

Scale = Sequence[tuple[float, str]]

_TIME: Scale = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZE: Scale = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_RATE: Scale = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
_ENERGY: Scale = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"))


_HOUR_S = 3600


def seconds(value_s: float) -> str:
    """ "1.23 s", "45.6 ms", "17 µs"; from two minutes on "2 min 5 s", from two hours on "2 h 5 min", from two days on
    "2 days 5 h"."""
    if not math.isfinite(value_s):
        return f"{value_s} s"
    if abs(value_s) >= 2 * _HOUR_S:
        long, short, named = (
            (24 * _HOUR_S, _HOUR_S, ("days", "h")) if abs(value_s) >= 48 * _HOUR_S else (_HOUR_S, 60, ("h", "min"))
        )
        whole, rest = divmod(round(abs(value_s) / short), long // short)
        return f"{'-' if value_s < 0 else ''}{whole:,} {named[0]} {rest} {named[1]}"
    if abs(value_s) >= 119.5:
        minutes, rest = divmod(round(abs(value_s)), 60)
        return f"{'-' if value_s < 0 else ''}{minutes} min {rest} s"
    return _scaled(value_s, _TIME)


def size(n_bytes: float) -> str:
    """ "403 MB": powers of ten, as links and storage are sold."""
    return _scaled(n_bytes, _SIZE)


def rate(bytes_per_s: float) -> str:
    """ "850 Mbit/s" from bytes per second."""
    return _scaled(8 * bytes_per_s, _RATE)


def energy(value_j: float) -> str:
    return _scaled(value_j, _ENERGY)


def percent(share: float) -> str:
    """ "12.3 %" from 0.123; "0.31 %" below one, where regrets live."""
    return f"{_digits(100 * share)} %"


def ratio(value: float) -> str:
    """ "1.30x"."""
    return f"{value:.2f}x"


def number(value: float) -> str:
    """ "20", "3.14", "57,600": a count or a plain figure."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value % 1 == 0 else _digits(value)


def count(value: float) -> str:
    """ "32,768": a number of things, to the nearest one."""
    return f"{value:,.0f}"


def of_unit(key: str) -> Callable[[float], str]:
    """The function that formats a value, chosen by the unit at the end of its name."""
    for ending, write in _BY_ENDING.items():
        if key.endswith(ending):
            return write
    return number


def _scaled(value: float, scale: Scale) -> str:
    if value == 0:
        return f"0 {next(unit for factor, unit in scale if factor == 1.0)}"
    # 999.6 would print as 1000, so it takes the next larger unit.
    factor, unit = next((step for step in scale if abs(value) >= 0.9995 * step[0]), scale[-1])
    return f"{number(value) if unit == 'B' else _digits(value / factor)} {unit}"


def _digits(value: float) -> str:
    """Three significant digits; two below 0.1, where a share or a regret is nearly nothing."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    if magnitude >= 0.0995:
        return f"{value:.2f}"
    return f"{value:.2g}"


# The longer ending first: bytes per second also ends in "_s".
_BY_ENDING: dict[str, Callable[[float], str]] = {
    "_bytes_per_s": rate,
    "_per_s": _digits,
    "_bytes": size,
    "_bytes_max": size,
    "_s": seconds,
    "seconds_per_token": seconds,
    "_j": energy,
    "_c": _digits,
    "_utilisation": percent,
    "_share": percent,
    "_occupancy": percent,
    "space_overhead": percent,
    "attention_mass": percent,
    "attention_mass_spread": percent,
    "attended_tokens": count,
    "_over_full": ratio,
    "reuse_rate": percent,
    "slo_attainment": percent,
    "kv_relative_error": percent,
    "least_clock": percent,
    "bound_gap": percent,
    "regret": percent,
    "regret_p95": percent,
}
