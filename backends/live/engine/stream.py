"""Queues of a device that keeps order by itself (CUDA): work is launched behind other work, without waiting for it."""

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.thread_work import Call, LiveWork, fire
from kvferry.backends.live.engine.worker import Worker, outcome
from kvferry.machine.span import Tell
from kvferry.specs.errors import MissingExtra


class Stream(Protocol):
    """An ordered queue on a device. Streams of one device have equal `device`."""

    device: object

    def launch(self, call: Callable[[], Any], behind: Sequence[Any]) -> tuple[Any, Any]:
        """Make the device do what `call` launches, once it has passed the marks `behind`. Does not wait for the device.

        Returns what `call` returned, and the mark that the device passes at the end of this work.
        """
        ...

    def wait(self, mark: Any) -> float:
        """Wait until the device has passed a mark of this stream. Returns the seconds that the work before it took."""
        ...


class StreamWorker(Worker):
    """A queue whose work is launched on a stream: one piece runs, and up to `ahead` are on the device behind it.

    Work that comes after other work on the same device is launched as soon as that work is launched: no thread waits
    between the two. What is launched cannot be cancelled.
    """

    def __init__(self, env: WallClockEnvironment, resource: str, tell: Tell, stream: Stream, ahead: int = 2) -> None:
        super().__init__(env, resource, tell, servers=1 + ahead)
        self.device = stream.device
        self._stream = stream
        self._launched: SimpleQueue[tuple[LiveWork, Any] | None] = SimpleQueue()
        self._last_end_s = 0.0

    def warm(self, call: Callable[[], object]) -> None:
        """As a Worker does, on the stream: what `call` allocates and fills is there before any work, which runs on the
        same stream."""
        super().warm(lambda: self._stream.wait(self._stream.launch(call, ())[1]))

    def _start(self, target: Callable[[], None]) -> None:
        """One thread launches, another waits for the device: whatever else is ahead, these two are enough."""
        if not self._threads:
            super()._start(target)
            super()._start(self._await_device)

    def _serve_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, call, inputs = job
            launched, error = outcome(self._launch, work, call, inputs)
            with self.env.lock:
                if error is None:
                    result, mark = launched
                    work.launch(mark, result)
                    self._launched.put((work, mark))
                    continue
                self.env.post(fire, self._finished(work, None, error))
        self._launched.put(None)

    def _launch(self, work: LiveWork, call: Call, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        behind = [t.mark for t in work.after if isinstance(t, LiveWork) and t.launched_for(work)]
        return self._stream.launch(lambda: call(inputs), behind)

    def _await_device(self) -> None:
        while (launched := self._launched.get()) is not None:
            work, mark = launched
            worked_s, error = outcome(self._stream.wait, mark)
            with self.env.lock:
                work.end_s = self.env.now
                # The device's clock drifts from ours: durations are its own, ends are when we learn of them.
                work.start_s = max(self._last_end_s, work.end_s - (worked_s or 0.0))
                self._last_end_s = work.end_s
                self.env.post(fire, self._finished(work, work.result, error))


class _CudaMark(NamedTuple):
    start: Any
    end: Any


class CudaStream:
    """A CUDA stream as a Stream. What `call` allocates belongs to this stream: see torch's `record_stream`."""

    def __init__(self, index: int = 0, priority: int = 0) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtra("CUDA streams need torch: install the [torch] extra") from error
        self._cuda = torch.cuda
        self.device: object = ("cuda", index)
        self._stream = torch.cuda.Stream(device=index, priority=priority)

    def launch(self, call: Callable[[], Any], behind: Sequence[_CudaMark]) -> tuple[Any, _CudaMark]:
        start, end = (self._cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        mark = _CudaMark(start, end)
        with self._cuda.stream(self._stream):
            for other in behind:
                self._stream.wait_event(other.end)
            mark.start.record(self._stream)
            result = call()
            mark.end.record(self._stream)
        return result, mark

    def wait(self, mark: _CudaMark) -> float:
        mark.end.synchronize()
        return mark.start.elapsed_time(mark.end) / 1e3


def streams_of(processor: str) -> Callable[[str], Stream] | None:
    """A stream for each resource of a torch device that keeps order by itself; None where threads do."""
    kind, _, index = processor.partition(":")
    return (lambda resource: CudaStream(int(index or 0))) if kind == "cuda" else None


def queue_of(env: WallClockEnvironment, resource: str, tell: Tell, stream: Callable[[str], Stream] | None) -> Worker:
    """A resource's queue, on its stream where there are any."""
    return Worker(env, resource, tell) if stream is None else StreamWorker(env, resource, tell, stream(resource))
