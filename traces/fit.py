"""From a recorded trace to the model that generates its like, and how well it does."""

import math
from statistics import NormalDist

import numpy as np
from pydantic import ValidationError

from kvferry.specs.errors import InputError
from kvferry.traces.generate import BandwidthModel, Fades, Memory, first_fault, generate
from kvferry.traces.logs import BYTES_PER_MBIT
from kvferry.traces.rate import RateTrace
from kvferry.traces.statistics import (
    FADE_SHARE,
    LAGS_S,
    Statistics,
    autocorrelation,
    fade_lengths_s,
    means_over,
    statistics_of,
)

# A grid finer at the ends, where fades and peaks are.
LEVELS = (0, 0.005, 0.01, 0.02, 0.035, *(n / 20 for n in range(1, 20)), 0.965, 0.98, 0.99, 0.995, 1)
# Fewer fades than these say nothing about how long they last.
_FEWEST_FADES = 3
_FEWEST_SAMPLES = 50
# Correlation is fitted up to this lag, but at most a quarter of the trace, where its estimate still means something.
_LONGEST_LAG_S = 30.0
_FINEST_S = 0.1
# How strongly fades may follow declines: what is tried.
_TRIES = (1, 3, 10, 30, 100)
_TRIAL_SEED = 1_000


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
    usual_s = float(np.median(np.diff(trace.edges_s)))
    step_s = max(_FINEST_S, round(usual_s, 3)) if interval_s is None else interval_s
    rates = means_over(trace, step_s)
    if len(rates) < _FEWEST_SAMPLES or rates.std() < 1e-3 * rates.mean():
        raise InputError(f"{name}: {len(rates)} samples of {step_s:g} s that hardly differ tell nothing to fit")
    fades = _fades(RateTrace.from_samples(rates, step_s))
    wanted = np.array([autocorrelation(means_over(trace, 1.0), lag) or 0.0 for lag in LAGS_S])
    quantiles = np.quantile(rates, LEVELS)
    if mean is not None or median is not None or std is not None:
        quantiles = _reshaped(quantiles, mean, median, std)
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
            memory=_memory(rates, step_s, fades),
            fades=fades,
        )
    except ValidationError as error:
        raise InputError(f"{name}: {first_fault(error)}") from None
    if not fades:
        return model
    candidates = [model.model_copy(update={"fades": fades.model_copy(update={"tries": t})}) for t in _TRIES]
    return min(candidates, key=lambda one: _missed(one, wanted))


def _missed(model: BandwidthModel, wanted: np.ndarray) -> float:
    """How far the autocorrelation of one-second means is from the wanted one, over a few realisations."""
    of_seeds = [
        [autocorrelation(means_over(generate(model, seed), 1.0), lag) or 0.0 for lag in LAGS_S]
        for seed in range(_TRIAL_SEED, _TRIAL_SEED + 4)
    ]
    return float(((np.mean(of_seeds, axis=0) - wanted) ** 2).sum())


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
    for lag, value in zip(LAGS_S, statistics.autocorrelation_1s, strict=True):
        figures[f"autocorrelation_1s_lag_{lag}"] = value
    figures["fade_share"] = statistics.fade_share
    figures["fades_per_minute"] = 60 * statistics.fades / statistics.duration_s
    figures["longest_fade_s"] = statistics.longest_fade_s
    return {key: None if value is None else float(f"{value:.4g}") for key, value in figures.items()}


def _fades(trace: RateTrace) -> Fades | None:
    lengths_s = fade_lengths_s(trace)
    if len(lengths_s) < _FEWEST_FADES:
        return None
    cv = max(0.1, float(lengths_s.std() / lengths_s.mean()))
    share = float(lengths_s.sum() / trace.duration_s)
    return Fades(share=round(share, 4), mean_s=round(float(lengths_s.mean()), 3), cv=round(cv, 3))


def _memory(rates: np.ndarray, step_s: float, fades: Fades | None) -> tuple[Memory, ...]:
    """At most two exponential parts, whose sum has the autocorrelation that the rates have outside fades."""
    clear = rates >= FADE_SHARE * rates.mean() if fades else np.ones(len(rates), dtype=bool)
    most = max(1, min(len(rates) // 4, int(_LONGEST_LAG_S / step_s)))
    lags = np.unique(np.geomspace(1, most, 40).round().astype(int))
    wanted = score_correlations(np.array([_correlation(rates, clear, int(lag)) for lag in lags]), np.sort(rates[clear]))
    # A memory longer than a fifth of the recording cannot be separated from its trend.
    times_s = np.geomspace(step_s / 2, max(step_s, len(rates) * step_s / 5), 40)
    decays = np.exp(-np.outer(1 / times_s, lags * step_s))
    fits = [
        (float(((a * decays[i] + b * decays[j] - wanted) ** 2).sum()), i, a, j, b)
        for i in range(len(times_s))
        for j in range(i + 1, len(times_s))
        for a, b in _shares(decays[i], decays[j], wanted)
    ]
    _, i, a, j, b = min(fits)
    parts = ((round(a, 3), times_s[i]), (round(b, 3), times_s[j]))
    return tuple(Memory(share=share, time_s=float(f"{time_s:.3g}")) for share, time_s in parts if share > 0)


def _shares(p: np.ndarray, q: np.ndarray, wanted: np.ndarray) -> list[tuple[float, float]]:
    """Candidates (a, b) for a p + b q = wanted in least squares, with a and b at least 0 and at most 1 together."""

    def within(value: float) -> float:
        return min(1.0, max(0.0, value))

    alone = [(within(float(p @ wanted / (p @ p))), 0.0), (0.0, within(float(q @ wanted / (q @ q))))]
    no_noise = within(float((p - q) @ (wanted - q) / ((p - q) @ (p - q))))
    (a, b), *_ = np.linalg.lstsq(np.stack([p, q], axis=1), wanted, rcond=None)
    inside = [(float(a), float(b))] if a >= 0 and b >= 0 and a + b <= 1 else []
    return [*alone, (no_noise, 1 - no_noise), *inside]


def _correlation(rates: np.ndarray, clear: np.ndarray, lag: int) -> float:
    """Autocorrelation over the pairs with neither in a fade."""
    both = clear[:-lag] & clear[lag:]
    if both.sum() < 10:
        return 0.0
    deviations = rates - rates[clear].mean()
    return float((deviations[:-lag] * deviations[lag:])[both].mean() / rates[clear].var())


def score_correlations(correlations: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """What the correlations of normal scores must be, so that the rates they are mapped to have the given ones.

    The map is expanded in Hermite polynomials: corr(g(X), g(Y)) is the sum over k of c_k^2 rho^k, over that of c_k^2.
    """
    n = len(ascending)
    scores = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
    before, polynomial = np.zeros(n), np.ones(n)
    powers = []
    for k in range(1, 25):
        before, polynomial = polynomial, (scores * polynomial - math.sqrt(k - 1) * before) / math.sqrt(k)
        powers.append(float((ascending * polynomial).mean()) ** 2)
    grid = np.linspace(0, 1, 501)
    # What the cut-off leaves of the variance belongs to high powers.
    rest = max(0.0, float(ascending.var()) - sum(powers))
    of_rates = sum(power * grid**k for k, power in enumerate(powers, 1)) + rest * grid ** (2 * len(powers))
    of_rates /= of_rates[-1]
    return np.interp(correlations, of_rates, grid)


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
