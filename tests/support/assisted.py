"""The scenario of tests/pipelines/assist: one device, one cloud, and costs to follow on paper (see by_hand)."""

from typing import Any

from tiny import changed, tiny

from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario

CLOUD = {"device": {"extends": "tiny", "processors": {"gpu": {"kind": "npu"}}}, "model": "tiny"}
BY_HAND: dict[str, Any] = {
    "name": "by-hand",
    "system": "pd-device",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "1 MB/s", "rtt": "20 ms"},
    "costs": "by-hand",
    "machines": {"cloud": CLOUD},
    # Token and mask in one message, as in the paper: times that follow from one another.
    "system_policies": {name: {"assist": {"mask": "with-token"}} for name in ("pd-device", "refinement-only")},
    "workload": {
        "kind": "assist",
        "prompt": 1000,
        "output": 10,
        "resident": True,
        "handling": {
            "prepare": "20 ms",
            "forward": "5 ms",
            "refine_token": "20 us",
            "unpack_token": "10 us",
            "prompt_token": "4 B",
            "answer_token": "100 B",
            "response": "1000 B",
        },
    },
}

# Prefill and decoding on an instance each.
APART = {"cloud": None, "prefill": CLOUD, "decode": CLOUD}


def ran(*overrides: str, **changes: Any) -> Run:
    run = run_scenario(tiny(changed(BY_HAND, **changes), *overrides))
    assert run.outcome == "done", run.why
    return run


def columns(run: Run) -> dict[str, list[float]]:
    assert run.assisted is not None
    return {name: column.tolist() for name, column in run.assisted.columns.items()}


def only(run: Run) -> dict[str, float]:
    """The figures of a run's only request."""
    return {name: one for name, (one,) in columns(run).items()}
