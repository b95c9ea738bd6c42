"""A finished run, carried out again where a number is a little different."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.repeats import Metrics
from kvferry.api.repeats import Watch
from kvferry.pipelines.record import Run
from kvferry.policies.engine_memory import offload_of
from kvferry.policies.offload import Offload
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    from kvferry.pipelines.decoding.elsewhere import Elsewhere

# Tokens that are decoded on a runtime with which a system plans otherwise; the first half of them warms up.
_FEW_TOKENS = 16
# Tokens that are decoded where requests decode together with all KV in memory.
_FIRST_TOKENS = 4


class Reruns:
    """Carries out what is like a scenario, whose `run` has finished, as briefly as will do."""

    def __init__(self, scenario: Scenario, run: Run, watch: Watch) -> None:
        self._scenario, self._before, self._watch = scenario, run, watch

    @cached_property
    def offload(self) -> Offload | None:
        """What of the weights lies elsewhere; None: nothing."""
        offload = offload_of(self._scenario)
        return offload if offload is not None and offload.layers else None

    def figures(self, scenario: Scenario, what: str) -> Metrics | None:
        """The figures of a run that finishes. One that decoded from KV elsewhere is only priced again where that will
        do; else a few tokens say what the others take."""
        from kvferry.pipelines.decoding.sizing import NoRoom
        from kvferry.pipelines.run import run_whole

        if self._elsewhere is not None:
            found = self._elsewhere.run(scenario)
            if found is not None:
                return metrics_for(scenario, found)
            scenario = _of_few_tokens(scenario)
        elif self._first_will_do:
            scenario = self._of_first_tokens(scenario)
        with self._watch(f"{scenario.name}: {scenario.system}, how sure: {what}") as progress:
            try:
                run = run_whole(scenario, progress)
            except NoRoom:
                # What just holds a selection on one runtime may hold none on another.
                return None
        if run.outcome != "done":
            return None
        if self._first_will_do:
            from kvferry.pipelines.decoding.elsewhere import as_first_tokens

            return metrics_for(self._scenario, as_first_tokens(self._before, run))
        return metrics_for(scenario, run)

    @cached_property
    def _elsewhere(self) -> Elsewhere | None:
        """The run on other devices; None where all KV was in memory."""
        if self._before.decoded is None or self._before.decoded.noted is None:
            return None
        from kvferry.pipelines.decoding.elsewhere import Elsewhere

        return Elsewhere(self._scenario, self._before)

    @cached_property
    def _first_will_do(self) -> bool:
        """Whether the first tokens with weights elsewhere stand for all, as nothing but the context grows."""
        scenario = self._scenario
        if scenario.workload.kind != "decode" or self.offload is None or scenario.decode.workload.lengths is not None:
            return False
        from kvferry.pipelines.decoding.elsewhere import together

        grows_alone = scenario.device.heat is None and scenario.load is None
        return grows_alone and together(self._before) and scenario.decode.workload.output > _FIRST_TOKENS

    def _of_first_tokens(self, scenario: Scenario) -> Scenario:
        """Returns the scenario with fewer tokens, and as many layers elsewhere as with all."""
        assert self.offload is not None
        offload = self.offload.spec.model_copy(update={"layers": self.offload.layers})
        workload = scenario.decode.workload.model_copy(update={"output": _FIRST_TOKENS})
        budget = scenario.decode.budget.model_copy(update={"offload": offload})
        return scenario.model_copy(update={"workload": workload, "budget": budget})


def _of_few_tokens(scenario: Scenario) -> Scenario:
    """Returns the scenario with fewer tokens that are decoded: what the rest take follows from these."""
    workload = scenario.decode.workload
    decoded = min(_FEW_TOKENS, workload.decoded or workload.output)
    return scenario.model_copy(update={"workload": workload.model_copy(update={"decoded": decoded})})
