"""All that a valid scenario names, held against what there is: systems, policies, cost models, traces."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from kvferry.pipelines.parameters import BadParameters
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.resolve import Complaint
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.errors import InputError, pick
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import ContextReuseSpec
from kvferry.traces.chunks import ChunkTrace
from kvferry.traces.resolve import link_trace, load_trace


def check_names(scenario: Scenario) -> None:
    """Raises InputError with a line for each fault that ``names_in_use`` finds: for scenarios built in Python."""
    faults = [f"{'.'.join(map(str, fault.key))}: {fault.what}" for fault in names_in_use(scenario)]
    if faults:
        raise InputError("\n".join(faults))


def names_in_use(scenario: Scenario) -> Iterator[Complaint]:
    """What a valid scenario names that nothing knows or that does not fit it."""
    try:
        system = pick("system", WORKLOADS[scenario.workload.kind].systems, scenario.system)
    except InputError as error:
        yield Complaint(("system",), str(error))
        return
    try:
        system.with_policies(scenario.policy_values)
    except BadParameters as error:
        yield from (Complaint(("policies", *fault.key), fault.what, fault.at_key) for fault in error.complaints)
    for use, name in (("truth", scenario.costs.truth), ("estimate", scenario.costs.estimate)):
        yield from _complaint(("costs", use), partial(main_costs, name, scenario.device, scenario.model))
    if scenario.link.trace is not None:
        yield from _complaint(("link", "trace"), partial(link_trace, scenario.link))
    if scenario.load is not None and scenario.load.trace is not None:
        yield from _complaint(("load", "trace"), partial(load_trace, scenario.load))
    if isinstance(scenario.workload, ContextReuseSpec) and scenario.workload.chunks is not None:
        yield from _complaint(("workload", "chunks"), partial(_check_chunks, scenario))


def _complaint(key: tuple[str, ...], use: Callable[[], object]) -> Iterator[Complaint]:
    try:
        use()
    except InputError as error:
        yield Complaint(key, str(error))


def _check_chunks(scenario: Scenario) -> None:
    """Recorded chunks must be those of this model and context: they would override both. Raises InputError."""
    workload, model = scenario.context_reuse.workload, scenario.model
    recorded = ChunkTrace.load(Path(str(workload.chunks)))
    _, layers, heads = recorded.shape
    if (layers, heads) != (model.layers, model.kv_heads):
        raise InputError(
            f"recorded with {layers} layers and {heads} KV heads, {model.name} has {model.layers} and"
            f" {model.kv_heads}; record it with this model"
        )
    tokens = int(recorded.tokens.sum())
    if tokens != workload.context:
        raise InputError(f"holds {tokens:,} tokens, workload.context says {workload.context:,}; make them equal")
    longest = int(recorded.tokens.max())
    if longest != min(workload.chunk_tokens, tokens) or np.any(recorded.tokens[:-1] != longest):
        what = f"its token chunks hold up to {longest:,} tokens"
        raise InputError(f"{what}, workload.chunk_tokens says {workload.chunk_tokens:,}; make them equal")
