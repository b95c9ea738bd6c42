"""From a recorded trace to the model that generates its like, and how well it does."""

import math

import numpy as np
from pydantic import ValidationError

from kvferry.specs.errors import InputError
from kvferry.traces.generate import BandwidthModel, Fades, first_fault, generate
from kvferry.traces.logs import BYTES_PER_MBIT
from kvferry.traces.memory import memory_of
from kvferry.traces.rate import RateTrace
from kvferry.traces.statistics import (
    LAGS_S,
    TRANSFERS_S,
    Statistics,
    fade_lengths_s,
    means_over,
    statistics_of,
    usual_step_s,
)

# A grid finer at the ends, where fades and peaks are.
LEVELS = (0, 0.005, 0.01, 0.02, 0.035, *(n / 20 for n in range(1, 20)), 0.965, 0.98, 0.99, 0.995, 1)
# Fewer fades than these say nothing about how long they last.
_FEWEST_FADES = 3
_FEWEST_SAMPLES = 50
# What is tried: the longest memory as a share of the recording, which tells it from a trend less and less, and how
# strongly fades may follow declines.
_LONGEST = (0.2, 0.5, 1.0)
_TRIES = (1, 3, 10, 30, 100)
_TRIAL_SEED = 1_000
# Realisations of a trial: as many as these samples make up, within limits.
_TRIAL_SAMPLES = 20_000
_FEWEST_TRIALS, _MOST_TRIALS = 2, 24
# Short fades cost correlation from step to step, which the memory makes up for in so many rounds.
_ROUNDS = 2
_MOST_CORRELATED = 0.9999


def fit_bandwidth(
    trace: RateTrace,
    name: str,
    *,
    description: str = "",
    fitted_to: str = "",
    seed: int = 1,
    duration_s: float = 600.0,
    interval_s: float | None = None,
    mean: float | None = None,
    median: float | None = None,
    std: float | None = None,
) -> BandwidthModel:
    """A model with the distribution, memory and fades of `trace`.

    `interval_s`: None takes the trace's usual spacing, at least 0.1 s. `mean` or `median`, and `std`, in bytes/s: the
    distribution is reshaped to have these instead, while the time structure stays. Raises InputError for a
    trace too short or too constant to say anything, or of a shape that cannot have these moments.
    """
    step_s = usual_step_s(trace) if interval_s is None else interval_s
    rates = means_over(trace, step_s)
    if len(rates) < _FEWEST_SAMPLES or rates.std() < 1e-3 * rates.mean():
        raise InputError(f"{name}: {len(rates)} samples of {step_s:g} s that hardly differ tell nothing to fit")
    fades = _fades(RateTrace.from_samples(rates, step_s))
    quantiles = np.quantile(rates, LEVELS)
    if mean is not None or median is not None or std is not None:
        reshaped = _reshaped(quantiles, mean, median, std)
        quantiles, rates = reshaped, np.interp(rates, quantiles, reshaped)
    try:
        model = BandwidthModel(
            kind="bandwidth",
            name=name,
            description=description,
            fitted_to=fitted_to,
            seed=seed,
            duration_s=duration_s,
            interval_s=step_s,
            levels=LEVELS,
            bytes_per_s=tuple(float(f"{rate:.5g}") for rate in quantiles),
            memory=(),
            fades=fades,
        )
    except ValidationError as error:
        raise InputError(f"{name}: {first_fault(error)}") from None
    return _remembering(model, RateTrace.from_samples(rates, step_s))


def _remembering(model: BandwidthModel, recorded: RateTrace) -> BandwidthModel:
    """The model with the memory, and the placing of fades, whose realisations come nearest to the recording."""
    wanted = _course_of(recorded)

    def missed(one: BandwidthModel) -> float:
        return float(((_course(one, recorded.duration_s) - wanted) ** 2).sum())

    def remembered(longest_s: float, step_correlation: float | None = None) -> dict[str, object]:
        return {"memory": memory_of(recorded.rates, model.interval_s, longest_s, step_correlation)}

    if model.fades:
        model = model.model_copy(update={"fades": model.fades.model_copy(update={"tries": _TRIES[len(_TRIES) // 2]})})
    by_longest_s = {share * recorded.duration_s: remembered(share * recorded.duration_s) for share in _LONGEST}
    longest_s = min(by_longest_s, key=lambda longest_s: missed(model.model_copy(update=by_longest_s[longest_s])))
    model = model.model_copy(update=by_longest_s[longest_s])
    if not model.fades:
        return model
    model = min(
        (model.model_copy(update={"fades": model.fades.model_copy(update={"tries": t})}) for t in _TRIES), key=missed
    )
    step = wanted[0]
    for _ in range(_ROUNDS):
        step = min(_MOST_CORRELATED, step + wanted[0] - _course(model, recorded.duration_s)[0])
        model = min((model, model.model_copy(update=remembered(longest_s, step))), key=missed)
    return model


def _course(model: BandwidthModel, duration_s: float) -> np.ndarray:
    """What ``_course_of`` says of realisations as long as a recording, in the mean; not longer than all trials are."""
    model = model.model_copy(update={"duration_s": min(duration_s, _TRIAL_SAMPLES * model.interval_s)})
    trials = min(_MOST_TRIALS, max(_FEWEST_TRIALS, int(_TRIAL_SAMPLES * model.interval_s / duration_s)))
    return np.mean([_course_of(generate(model, _TRIAL_SEED + n)) for n in range(trials)], axis=0)


def _course_of(trace: RateTrace) -> np.ndarray:
    """The correlations of a trace, that of one step first, and the logarithms of how long transfers take in it."""
    found = statistics_of(trace)
    correlations = [value or 0.0 for value in (found.autocorrelation_step, *found.autocorrelation_1s)]
    return np.array(correlations + [math.log(time_s) for times_s in found.transfers_s for time_s in times_s or ()])


def with_figures(model: BandwidthModel, wanted: dict[str, float | None]) -> BandwidthModel:
    """The model with what it was fitted to and what its own trace has, figure by figure."""
    got = figures_of(statistics_of(generate(model)))
    return model.model_copy(update={"figures": {key: (wanted.get(key), got[key]) for key in got}})


def figures_of(statistics: Statistics) -> dict[str, float | None]:
    """The statistics that a fit is judged by; rates in Mbit/s."""
    rates = {"mean": statistics.mean, "std": statistics.std, "p5": statistics.p5, "median": statistics.median}
    rates |= {"p95": statistics.p95}
    figures: dict[str, float | None] = {f"{key}_mbit_per_s": rate / BYTES_PER_MBIT for key, rate in rates.items()}
    figures["std_1s_mbit_per_s"] = None if statistics.std_1s is None else statistics.std_1s / BYTES_PER_MBIT
    figures["autocorrelation_step"] = statistics.autocorrelation_step
    for lag, value in zip(LAGS_S, statistics.autocorrelation_1s, strict=True):
        figures[f"autocorrelation_1s_lag_{lag}"] = value
    figures["fade_share"] = statistics.fade_share
    figures["fades_per_minute"] = 60 * statistics.fades / statistics.duration_s
    figures["longest_fade_s"] = statistics.longest_fade_s
    for usual_s, times_s in zip(TRANSFERS_S, statistics.transfers_s, strict=True):
        for key, value in zip(("median", "p95"), times_s or (None, None), strict=True):
            figures[f"transfer_{usual_s}s_{key}_s"] = value
    return {key: None if value is None else float(f"{value:.4g}") for key, value in figures.items()}


def _fades(trace: RateTrace) -> Fades | None:
    lengths_s = fade_lengths_s(trace)
    if len(lengths_s) < _FEWEST_FADES:
        return None
    cv = max(0.1, float(lengths_s.std() / lengths_s.mean()))
    share = float(lengths_s.sum() / trace.duration_s)
    return Fades(share=round(share, 4), mean_s=round(float(lengths_s.mean()), 3), cv=round(cv, 3))


def _reshaped(quantiles: np.ndarray, mean: float | None, median: float | None, std: float | None) -> np.ndarray:
    """The quantile function raised to a power and scaled, so that it has these moments; 0 stays 0.

    Without `std` it is only scaled. Raises InputError for a spread that no power from 1/20 to 20 gives.
    """
    levels = (np.arange(20_000) + 0.5) / 20_000
    shape = quantiles / quantiles[-1]
    centre_of = np.mean if median is None else np.median

    def drawn(power: float) -> tuple[float, float]:
        """(Centre, standard deviation) of what is generated with this power."""
        rates = np.interp(levels, LEVELS, shape**power)
        return float(centre_of(rates)), float(rates.std())

    asked = mean if median is None else median
    centre = drawn(1.0)[0] * float(quantiles[-1]) if asked is None else asked
    power = 1.0
    if std is not None:
        low, high = 1 / 20, 20.0
        for _ in range(60):
            power = math.sqrt(low * high)
            middle, spread = drawn(power)
            # A higher power spreads more.
            low, high = (power, high) if spread * centre < std * middle else (low, power)
        if not 1.01 / 20 < power < 20 / 1.01:
            raise InputError(f"a standard deviation of {std / centre:.3g} of the centre is out of this shape's reach")
    return shape**power * centre / drawn(power)[0]
