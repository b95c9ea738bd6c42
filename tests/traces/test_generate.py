"""Generated traces: the distribution that the model says, the memory and fades that were fitted, the same bytes."""

import re
import subprocess
import sys

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.fit import figures_of, fit_bandwidth, with_figures
from kvferry.traces.generate import BandwidthModel, LoadModel, generate, read_model, write_model
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import bundled, bundled_model
from kvferry.traces.statistics import autocorrelation, fade_lengths_s, means_over, statistics_of


def model(**changes):
    values = {
        "kind": "bandwidth",
        "name": "test",
        "description": "",
        "duration_s": 500.0,
        "interval_s": 0.1,
        "levels": (0, 0.5, 1),
        "bytes_per_s": (0, 100, 300),
        "memory": [],
    }
    return BandwidthModel.model_validate(values | changes)


@pytest.mark.parametrize("seed", range(4))
def test_every_realisation_has_the_distribution(seed):
    # Half of the time uniform on 0..100, half on 100..300: mean 125, median 100, 5 % at 10, 95 % at 280; second moment
    # (100^2 / 3 + (300^3 - 100^3) / (3 * 200)) / 2 = 23,333, so the variance is 23,333 - 15,625 = 7,708.
    for memory in ([], [{"share": 0.9, "time_s": 5.0}], [{"share": 0.5, "time_s": 0.5}, {"share": 0.5, "time_s": 50}]):
        found = statistics_of(generate(model(memory=memory), seed))
        assert found.mean == pytest.approx(125, rel=1e-3)
        assert found.std == pytest.approx(7708.3**0.5, rel=1e-3)
        assert (found.p5, found.median, found.p95) == pytest.approx((10, 100, 280), rel=5e-3)


def test_memory_is_exponential():
    # Uniform rates barely bend the correlation (at most by 0.02): exp(-0.1 / 2) at a lag of one sample, exp(-1) at 2 s.
    even = model(levels=(0, 1), bytes_per_s=(0, 300), duration_s=10_000, memory=[{"share": 1, "time_s": 2.0}])
    rates = generate(even).rates
    assert autocorrelation(rates, 1) == pytest.approx(np.exp(-0.05), abs=0.02)
    assert autocorrelation(rates, 20) == pytest.approx(np.exp(-1), abs=0.06)
    noise = generate(even.model_copy(update={"memory": ()})).rates
    assert autocorrelation(noise, 1) == pytest.approx(0, abs=0.01)


def test_fades_take_the_lowest_rates_for_their_share_of_the_time():
    fading = model(
        levels=(0, 0.1, 0.11, 1),
        bytes_per_s=(0, 0, 200, 300),
        duration_s=2000,
        fades={"share": 0.1, "mean_s": 2.0, "cv": 0.5},
    )
    lengths_s = fade_lengths_s(generate(fading))
    assert lengths_s.sum() == pytest.approx(200, rel=0.02)
    # A gamma of 2 s +- 1 s, a hundred of them: the mean is within three standard errors.
    assert lengths_s.mean() == pytest.approx(2.0, abs=0.3)
    assert lengths_s.std() == pytest.approx(1.0, abs=0.3)


def test_fades_end_declines_on_request():
    def rates_before(tries):
        fades = {"share": 0.05, "mean_s": 1.0, "cv": 0.5, "tries": tries}
        spiky = model(
            levels=(0, 0.05, 0.051, 1),
            bytes_per_s=(0, 0, 100, 300),
            memory=[{"share": 1, "time_s": 20}],
            fades=fades,
        )
        rates = generate(spiky).rates
        starts = np.flatnonzero((rates[1:] < 20) & (rates[:-1] >= 20))
        return rates[starts].mean()

    assert rates_before(1) == pytest.approx(200, abs=30)
    assert rates_before(100) < 150


def test_the_seed_and_the_name_decide():
    a = model(memory=[{"share": 0.9, "time_s": 5.0}])
    assert generate(a).rates.tolist() == generate(a).rates.tolist()
    assert generate(a).rates.tolist() != generate(a, seed=2).rates.tolist()
    assert generate(a).rates.tolist() != generate(a.model_copy(update={"name": "other"})).rates.tolist()


def test_the_same_bytes_in_another_process():
    code = "from kvferry.traces.resolve import bandwidth_trace as t; print(t('wifi-850').rates.tobytes().hex()[:4000])"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_load_comes_in_bursts():
    bursty = LoadModel(
        kind="load",
        name="l",
        description="",
        duration_s=20_000,
        busy_mean_s=2,
        idle_mean_s=6,
        busy_low=0.4,
        busy_high=0.8,
    )
    trace = generate(bursty)
    assert trace.duration_s == 20_000
    assert set(np.flatnonzero(trace.rates == 0) % 2) == {0}
    # Busy a quarter of the time, at 0.6 in the mean; 2,500 bursts leave a standard error of some 2 %.
    assert trace.mean() == pytest.approx(0.15, rel=0.08)
    assert trace.rates.max() <= 0.8


def test_a_fit_finds_what_a_model_was_made_of():
    known = model(
        levels=(0, 0.5, 1),
        bytes_per_s=(5e6, 50e6, 100e6),
        duration_s=3000,
        memory=[{"share": 0.3, "time_s": 0.5}, {"share": 0.6, "time_s": 15}],
    )
    real = generate(known)
    fitted = generate(fit_bandwidth(real, "again", duration_s=3000))
    a, b = statistics_of(real), statistics_of(fitted)
    for name in ("mean", "std", "p5", "median", "p95"):
        assert getattr(b, name) == pytest.approx(getattr(a, name), rel=0.01)
    assert b.std_1s == pytest.approx(a.std_1s, rel=0.05)
    assert b.autocorrelation_1s == pytest.approx(a.autocorrelation_1s, abs=0.1)


def test_a_fit_keeps_steps_and_transfers_where_fades_are_frequent():
    # Two rates in the main, ten fades a minute of 0.3 s: each fade takes two steps from the correlation of the rest.
    known = model(
        levels=(0, 0.05, 0.06, 0.4, 0.5, 1),
        bytes_per_s=(0, 1e5, 5e6, 20e6, 90e6, 100e6),
        duration_s=300,
        memory=[{"share": 0.1, "time_s": 0.3}, {"share": 0.9, "time_s": 30}],
        fades={"share": 0.05, "mean_s": 0.3, "cv": 0.5, "tries": 10},
    )
    real = generate(known)
    fitted = fit_bandwidth(real, "again", duration_s=300)
    found = [statistics_of(generate(fitted, seed)) for seed in range(20)]
    wanted = statistics_of(real)
    steps = np.mean([one.autocorrelation_step for one in found])
    assert steps == pytest.approx(wanted.autocorrelation_step, abs=0.025)
    for place, (_, p95_s) in enumerate(wanted.transfers_s):
        assert np.median([one.transfers_s[place][1] for one in found]) == pytest.approx(p95_s, rel=0.2)


def test_a_fit_to_other_moments_has_them():
    real = generate(model(bytes_per_s=(0, 50e6, 100e6), memory=[{"share": 0.9, "time_s": 5}]))
    found = statistics_of(generate(fit_bandwidth(real, "m", mean=80e6, std=20e6)))
    assert (found.mean, found.std) == pytest.approx((80e6, 20e6), rel=1e-3)
    found = statistics_of(generate(fit_bandwidth(real, "m", median=60e6, std=40e6)))
    assert (found.median, found.std) == pytest.approx((60e6, 40e6), rel=2e-3)
    scaled, plain = (statistics_of(generate(fit_bandwidth(real, "m", mean=mean))) for mean in (100e6, None))
    assert scaled.std / scaled.mean == pytest.approx(plain.std / plain.mean, rel=1e-4)


def test_what_tells_nothing_is_not_fitted():
    with pytest.raises(InputError, match="tell nothing"):
        fit_bandwidth(RateTrace.from_samples(np.ones(1000), 0.1), "flat")
    with pytest.raises(InputError, match="tell nothing"):
        fit_bandwidth(RateTrace.from_samples([1, 2, 3], 1), "short")
    wide = RateTrace.from_samples(np.random.default_rng(0).uniform(0.9, 1, 1000), 0.1)
    with pytest.raises(InputError, match="out of"):
        fit_bandwidth(wide, "narrow", mean=1.0, std=1e3)


# SparKV's environments, whose memory is that of the claims that were run on them.
_BEFORE_STEPS_WERE_FITTED = ("wifi-850", "wifi-campus", "wifi-congested", "wifi6-local")


@pytest.mark.parametrize("name", bundled())
def test_bundled_models_keep_their_word(name):
    one = bundled_model(name)
    assert one.name == name
    assert one.description
    if isinstance(one, LoadModel):
        return
    assert one.fitted_to
    # The figures that the file claims are those that it generates.
    got = figures_of(statistics_of(generate(one)))
    assert {key: pair[1] for key, pair in one.figures.items()} == pytest.approx(got, rel=1e-3, abs=1e-3)
    # Distribution as fitted: moments within 2 %, the tails within 6 %, both of the mean.
    mean = one.figures["mean_mbit_per_s"][1]
    for key, (wanted, found) in one.figures.items():
        if wanted is not None and key in ("mean_mbit_per_s", "median_mbit_per_s", "std_mbit_per_s"):
            assert found == pytest.approx(wanted, abs=0.02 * mean)
        elif wanted is not None and key in ("p5_mbit_per_s", "p95_mbit_per_s"):
            assert found == pytest.approx(wanted, abs=0.06 * mean)
        elif wanted is not None and key == "autocorrelation_step":
            assert found == pytest.approx(wanted, abs=0.09 if name in _BEFORE_STEPS_WERE_FITTED else 0.03)
        elif wanted is not None and key.startswith("autocorrelation"):
            assert found == pytest.approx(wanted, abs=0.26)
        elif wanted is not None and key.startswith("transfer") and name not in _BEFORE_STEPS_WERE_FITTED:
            assert found == pytest.approx(wanted, rel=0.15)


def test_models_are_read_as_written(tmp_path):
    path = tmp_path / "model.yaml"
    one = with_figures(model(fades={"share": 0.1, "mean_s": 2.0, "cv": 0.5}), {"mean_mbit_per_s": 0.001})
    write_model(path, one)
    assert read_model(path) == one
    text = path.read_text()
    for old, new, what in (
        ('kind: "bandwidth"', "kind: weather", "kind"),
        ("seed: 1", "seed: -1", "seed"),
        ("seed: 1", "sed: 1", "sed"),
        ("interval_s: 0.1", "interval_s: .nan", "interval_s"),
        ("interval_s: 0.1", "interval_s: 1.0e-9", "samples"),
        ("levels: [0.0,", "levels: [0.1,", "levels"),
        ("share: 0.1", "share: 2", "fades.share"),
        ('kind: "bandwidth"', "kind: [", ":"),
        ('name: "test"', "name: [test]", ":2: name"),
        ('kind: "bandwidth"', "kind: !!python/object:os.system x", ":1: the tag"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(InputError) as error:
            read_model(path)
        assert str(path) in str(error.value)
        assert what in str(error.value)


@pytest.mark.parametrize(
    "text", ["1e9", "0x10", "no", "~", "1:30", "2020-13-40", "", "a\x1b[31m\x85\u2028é\U0001f600 'b' \"c\"", "9" * 400]
)
def test_a_description_is_read_as_it_was_written(tmp_path, text):
    write_model(tmp_path / "m.yaml", model(description=text, fitted_to=text))
    assert read_model(tmp_path / "m.yaml").description == text


@pytest.mark.parametrize(
    "value",
    ["0x", "0b", "0x10", "2020-13-40", "2020-01-01 00:00:00+25:00", "9" * 5000, "1:30", "true", "'1'", "1_0", ".inf"]
    + ["[1]", "~", "1e400", "0o17", "!!float 1", "<<", "2020-01-01"],
)
@pytest.mark.parametrize("key", ["interval_s", "seed", "duration_s"])
def test_what_is_no_number_is_named_with_its_line(tmp_path, key, value):
    path = tmp_path / "model.yaml"
    write_model(path, model())
    (line,) = [n for n, line in enumerate(path.read_text().splitlines(), 1) if line.startswith(f"{key}: ")]
    path.write_text(re.sub(f"{key}: .*", f"{key}: {value}", path.read_text()))
    with pytest.raises(InputError) as error:
        read_model(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_a_million_short_fades_are_refused_and_many_are_quick(tmp_path):
    short = {"share": 0.5, "mean_s": 0.001, "cv": 1.0}
    with pytest.raises(InputError, match="more than 200,000 of them"):
        generate(model(interval_s=0.01, duration_s=10_000, fades=short))
    # A second or so; a sum over all samples for each of them took minutes.
    many = generate(model(interval_s=0.01, duration_s=200, bytes_per_s=(0, 0, 9), fades=short | {"share": 0.3}))
    assert len(many.rates) == 20_000


def test_one_second_means_are_what_fits_are_judged_by():
    # A check of the yardstick: 1 s of 10 samples, each 10 higher than the one before.
    assert means_over(RateTrace.from_samples(np.repeat([10.0, 20, 30], 10), 0.1), 1).tolist() == pytest.approx(
        [10, 20, 30]
    )
