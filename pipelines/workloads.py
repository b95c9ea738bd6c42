"""The kinds of workload by name."""

from kvferry.pipelines.assist.workload import Assist
from kvferry.pipelines.decoding.workload import Decode
from kvferry.pipelines.loading.workload import ContextReuse
from kvferry.pipelines.workload import WorkloadKind

WORKLOADS: dict[str, WorkloadKind] = {"context-reuse": ContextReuse(), "decode": Decode(), "assist": Assist()}
