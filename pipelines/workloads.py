"""The kinds of workload by name, each imported when it is first asked for: a load has no use for decoding."""

from collections.abc import Iterator, MutableMapping
from importlib import import_module

from kvferry.pipelines.workload import WorkloadKind


class Kinds(MutableMapping[str, WorkloadKind]):
    """``made_by``: module and class of each kind, by its name."""

    def __init__(self, made_by: dict[str, tuple[str, str]]) -> None:
        self._made_by = made_by
        self._kinds: dict[str, WorkloadKind] = {}

    def __getitem__(self, name: str) -> WorkloadKind:
        if name not in self._kinds:
            module, kind = self._made_by[name]
            self._kinds[name] = getattr(import_module(module), kind)()
        return self._kinds[name]

    def __setitem__(self, name: str, kind: WorkloadKind) -> None:
        self._made_by.setdefault(name, (type(kind).__module__, type(kind).__name__))
        self._kinds[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._made_by[name]
        self._kinds.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._made_by)

    def __len__(self) -> int:
        return len(self._made_by)


WORKLOADS = Kinds(
    {
        "context-reuse": ("kvferry.pipelines.loading.workload", "ContextReuse"),
        "decode": ("kvferry.pipelines.decoding.workload", "Decode"),
        "assist": ("kvferry.pipelines.assist.workload", "Assist"),
        "session": ("kvferry.sessions.workload", "Session"),
    }
)
