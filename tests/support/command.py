"""What stands in for runs of the command: a small scenario, and runs of it that took a given time."""

from collections.abc import Callable
from typing import Any

from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run

SMALL = """\
name: small
system: stream-only
device: rtx-5080-laptop
model: tiny
link: {rate: 850 Mbit/s, rtt: 4 ms}
workload: {kind: context-reuse, context: 4Ki tokens}
"""

# Exit code, output and errors of a command.
Call = Callable[..., tuple[int, str, str]]


def result(ttft_s: float, **more: Any) -> Run:
    request = RequestRecord(
        request=0, arrival_s=0.0, loaded_s=ttft_s / 2, first_token_s=ttft_s, token_times_s=(ttft_s,)
    )
    spans = (Span("link", "fetch", 0.0, ttft_s / 2, n_bytes=1e6, request=0),)
    return Run(**{"outcome": "done", "requests": (request,), "spans": spans, "duration_s": ttft_s, **more})
