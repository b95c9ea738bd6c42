"""What can be said about a trace in a few figures: how much, how unsteady, how long its memory, how bad its fades."""

from dataclasses import dataclass

import numpy as np

from kvferry.traces.rate import RateTrace

# Lags at which the autocorrelation of one-second means is reported.
LAGS_S = (1, 2, 5, 10)
# What loads meet: how long it takes to move what the mean rate moves in these times.
TRANSFERS_S = (2, 10)
# So many beginnings of a transfer, evenly spaced over one play.
_BEGINNINGS = 2_000
# Samples finer than this say more of packets than of a link.
FINEST_S = 0.1
# A fade: the rate stays below this share of the mean.
FADE_SHARE = 0.1


@dataclass(frozen=True)
class Statistics:
    """Rates in the trace's own unit per second; all are weighted by time, over one play of the trace."""

    duration_s: float
    pieces: int
    mean: float
    std: float
    least: float
    p5: float
    median: float
    p95: float
    most: float
    # Standard deviation of the means over whole seconds, and their autocorrelation at each lag of LAGS_S; None
    # where the trace is shorter than three times the lag, or does not vary.
    std_1s: float | None
    autocorrelation_1s: tuple[float | None, ...]
    # Autocorrelation from one sample to the next, at the trace's usual spacing, but 0.1 s at least.
    autocorrelation_step: float | None
    # Median and 95th percentile of the time that each of TRANSFERS_S takes, in seconds; None where nothing moves.
    transfers_s: tuple[tuple[float, float] | None, ...]
    # Share of the time in fades, how many there are, and the longest.
    fade_share: float
    fades: int
    longest_fade_s: float


def statistics_of(trace: RateTrace) -> Statistics:
    widths, rates = np.diff(trace.edges_s), trace.rates
    mean = trace.mean()
    seconds = means_over(trace, 1.0)
    fades = fade_lengths_s(trace)
    least, p5, median, p95, most = quantiles(trace, np.array([0, 0.05, 0.5, 0.95, 1])).tolist()
    return Statistics(
        duration_s=trace.duration_s,
        pieces=len(rates),
        mean=mean,
        std=float(np.sqrt(np.average((rates - mean) ** 2, weights=widths))),
        least=least,
        p5=p5,
        median=median,
        p95=p95,
        most=most,
        std_1s=float(seconds.std()) if len(seconds) > 1 else None,
        autocorrelation_1s=tuple(autocorrelation(seconds, lag) for lag in LAGS_S),
        autocorrelation_step=autocorrelation(means_over(trace, usual_step_s(trace)), 1),
        transfers_s=tuple(_median_and_p95(transfer_times_s(trace, usual_s)) for usual_s in TRANSFERS_S),
        fade_share=float(fades.sum()) / trace.duration_s,
        fades=len(fades),
        longest_fade_s=float(fades.max(initial=0.0)),
    )


def usual_step_s(trace: RateTrace) -> float:
    """The median spacing of the samples, but 0.1 s at least."""
    return max(FINEST_S, round(float(np.median(np.diff(trace.edges_s))), 3))


def transfer_times_s(trace: RateTrace, usual_s: float) -> np.ndarray:
    """How long a transfer takes of as much as the mean rate moves in `usual_s`, for beginnings all over one play.

    The trace starts again behind its end, whatever it says. Empty where nothing moves.
    """
    amount = usual_s * trace.mean()
    if not amount:
        return np.empty(0)
    looped = RateTrace(trace.edges_s, trace.rates)
    begins_s = np.linspace(0, trace.duration_s, _BEGINNINGS, endpoint=False).tolist()
    return np.array([looped.finish_s(begin_s, amount) - begin_s for begin_s in begins_s])


def _median_and_p95(times_s: np.ndarray) -> tuple[float, float] | None:
    return (float(np.quantile(times_s, 0.5)), float(np.quantile(times_s, 0.95))) if len(times_s) else None


def means_over(trace: RateTrace, window_s: float) -> np.ndarray:
    """Mean rates over successive whole windows of one play; empty when it is shorter than a window."""
    sums = np.concatenate([[0.0], np.cumsum(trace.rates * np.diff(trace.edges_s))])
    # The last window may end a rounding after the last edge.
    count = int(trace.duration_s / window_s * (1 + 1e-12))
    return np.diff(np.interp(np.arange(count + 1) * window_s, trace.edges_s, sums)) / window_s


def quantiles(trace: RateTrace, levels: np.ndarray) -> np.ndarray:
    """The lowest rates that are not exceeded for these shares of the time; each is one that the trace has."""
    order = np.argsort(trace.rates, kind="stable")
    until = np.cumsum(np.diff(trace.edges_s)[order])
    # A rounding of the sum must not lead past the piece that reaches a level.
    place = np.searchsorted(until / until[-1], levels - 1e-12)
    return trace.rates[order][np.minimum(place, len(order) - 1)]


def autocorrelation(values: np.ndarray, lag: int) -> float | None:
    """Correlation of a series with itself `lag` later; None when it is shorter than three lags or constant."""
    if len(values) < max(4, 3 * lag):
        return None
    deviations = values - values.mean()
    power = float(deviations @ deviations)
    return float(deviations[:-lag] @ deviations[lag:]) / power if power > 1e-20 * float(values @ values) else None


def fade_lengths_s(trace: RateTrace) -> np.ndarray:
    """How long the rate stayed below `FADE_SHARE` of the mean, each time it did; within one play."""
    low = np.concatenate([[False], trace.rates < FADE_SHARE * trace.mean(), [False]])
    changes = np.flatnonzero(np.diff(low.astype(int)))
    return trace.edges_s[changes[1::2]] - trace.edges_s[changes[::2]]
