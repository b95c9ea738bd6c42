"""What results rest on: profiles that were not measured, bounds and energy that cannot be had."""

from dataclasses import replace

import pytest
from tiny import DECODING, LOADING, changed

from kvferry.analysis import remarks
from kvferry.analysis.envelope import provenance_of
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.remarks import errors_of_the_profile, how_known, remarks_on, rests_on
from kvferry.analysis.tables import NOT_COUNTED, compare_table, run_table, show
from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.device import CalibrationSpec
from kvferry.specs.scenario import Scenario


def measured(scenario: Scenario) -> Scenario:
    main = scenario.device.main
    processor = scenario.device.processors[main].model_copy(update={"measured": "/somewhere"})
    device = scenario.device.model_copy(update={"processors": {main: processor}})
    return scenario.model_copy(update={"device": device})


def loaded(**more: object) -> Run:
    request = RequestRecord(request=0, arrival_s=0.0, loaded_s=4.0, first_token_s=5.0, bound_s=1.0)
    return Run(outcome="done", requests=(request,), spans=(Span("link", "fetch", 0.0, 4.0, 1e6, 0),), **more)  # type: ignore[arg-type]


def test_a_profile_that_was_not_measured_says_so() -> None:
    scenario = load_scenario(LOADING)
    line = how_known(scenario.device)
    assert line is not None
    assert "tiny is not a measured device" in line
    assert "kvferry calibrate" in line
    assert how_known(measured(scenario).device) is None


def test_a_profile_says_how_and_when_it_was_measured() -> None:
    device = measured(load_scenario(LOADING)).device
    how = CalibrationSpec(
        date="2026-11-23", quick=True, load_average=19.0, cores=2, median_spread=0.2, largest_spread=0.99,
        largest_spread_of="matrix_product",
    )  # fmt: skip
    hasty = device.model_copy(update={"calibration": how})
    said = (
        "tiny was measured on 2026-11-23, quickly (--quick: fewer points and repetitions), on a busy machine (load 19"
        " on 2 cores); repetitions spread by 20 % in the median, 99 % at most (matrix_product)"
    )
    assert how_known(hasty) == said
    scenario = load_scenario(LOADING).model_copy(update={"device": hasty})
    assert said in remarks_on({"ferry": (scenario, loaded())})
    assert provenance_of(hasty, scenario.model)["device"]["calibration"]["quick"]
    careful = device.model_copy(update={"calibration": how.model_copy(update={"quick": False, "load_average": 0.1})})
    assert "tiny was measured on 2026-11-23; repetitions" in str(how_known(careful))
    assert errors_of_the_profile(careful) is None
    assert "errors will be the profile's as well as the simulator's" in str(errors_of_the_profile(hasty))
    assert "was not measured: errors will be the profile's, not the simulator's; kvferry calibrate" in str(
        errors_of_the_profile(load_scenario(LOADING).device)
    )


@pytest.mark.parametrize(
    ("backend", "calibrated", "bounded"), [("sim", False, True), ("torch", False, False), ("torch", True, True)]
)
def test_a_real_run_has_a_bound_where_the_device_was_measured(backend: str, calibrated: bool, bounded: bool) -> None:
    scenario = load_scenario(LOADING).model_copy(update={"backend": backend})
    scenario = measured(scenario) if calibrated else scenario
    found = metrics_for(scenario, loaded())
    assert ("regret" in found, "bound_s" in found) == (bounded, bounded)
    assert any("no bound or regret" in line for line in remarks_on({"ferry": (scenario, loaded())})) is not bounded


def test_energy_of_which_a_part_is_not_known_is_no_sum() -> None:
    # The tiny storage has no active_w; the link's interface has one.
    scenario = load_scenario(DECODING)
    energy = {"base": 1.0, "gpu": 2.0, "network": 0.5}
    without = loaded(energy_j=energy)
    reading = replace(without, spans=(*without.spans, Span("storage", "Read", 0.0, 1.0, 1e6)))
    assert metrics_for(scenario, without)["energy_j"] == pytest.approx(3.5)
    assert "energy_j" not in metrics_for(scenario, reading)
    assert remarks_on({"a": (scenario, reading)})[-1] == (
        "energy is not counted: tiny has no power for storage (active_w, base_w)"
    )


def test_a_component_without_power_is_not_shown_as_0_j() -> None:
    device = changed(LOADING, device={"extends": "tiny", "network": {"active_w": "0 W"}, "base_w": "0 W"})
    found = metrics_for(load_scenario(device), loaded(energy_j={"base": 0.0, "gpu": 2.0, "network": 0.2}))
    assert {key for key in found if key.startswith("energy")} == {"energy_gpu_j"}


def test_tables_say_that_energy_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    show(run_table({"ttft_s": 1.0, "requests": 1.0, "energy_gpu_j": 2.0}))
    assert NOT_COUNTED in capsys.readouterr().out
    show(compare_table({"a": {"ttft_s": 1.0, "energy_j": 2.0}, "b": {"ttft_s": 2.0}}))
    assert NOT_COUNTED in capsys.readouterr().out
    show(run_table({"requests": 0.0}))
    assert NOT_COUNTED not in capsys.readouterr().out


def test_studies_say_what_their_figures_rest_on_as_comparisons_do(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a cloud that helps, the second machine too; of decoding, the runtime.
    monkeypatch.setattr(remarks, "_software", lambda of, named: [f"assumed, {named}"])
    assisted, decoding = load_scenario("pd_device/assist"), load_scenario(DECODING)
    lines = rests_on([assisted, decoding, assisted])
    assert [line.split()[0] for line in lines[:2]] == ["kirin-phone", "ascend-cloud"]
    assert lines[2].startswith("tiny is not a measured device")
    assert lines[3:] == ["assumed, True"]
