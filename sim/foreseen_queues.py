"""When work ends that a processor and a storage do one by one, by arithmetic, where nothing else slows them: as the
storage slows the processor, or as each slows the other."""

from collections.abc import Iterable

from kvferry.sim.processor import Processor
from kvferry.sim.slowing_queues import Piece, SlowingQueues
from kvferry.sim.storage_curve import CurveStorage

# An op, or a batch of reads or writes: its end and start, label, bytes, and whether it was on the storage. A plain
# tuple, as a token has hundreds.
_Worked = tuple[float, float, str, float, bool]


class ForeseenQueues:
    """A processor and a storage, each with work in the order in which it is handed over. ``beside``: the processor's
    speed (up to 1) while the storage works on what was handed over before."""

    def __init__(self, processor: Processor, storage: CurveStorage, beside: float) -> None:
        self._processor, self._storage, self._beside = processor, storage, beside
        self._dispatch_s, self._both_ways = processor.dispatch_s, storage.spec.duplex == "full"
        # When the processor is free, when the storage began its last batch, when each direction is free, and when it
        # works, in order of time.
        self._processor_s = self._began_s = 0.0
        self._free_s: dict[str, float] = {}
        self._busy: list[tuple[float, float]] = []
        # What is not over yet.
        self._worked: list[_Worked] = []

    def op(self, label: str, after_s: float, cost_s: float, n_bytes: float) -> float:
        """When an op ends that costs so much besides its dispatch, and may begin then."""
        begin = after_s if after_s > self._processor_s else self._processor_s
        now = begin + self._dispatch_s
        self._processor_s = end = now + cost_s if self._beside == 1 else self._end_beside(now, cost_s)
        self._worked.append((end, begin, label, n_bytes, False))
        return end

    def batch(self, label: str, after_s: float, took_s: float, n_bytes: float) -> float:
        """When a batch of reads or writes ends. It begins after all batches before it have begun."""
        lane = label if self._both_ways else "both"
        begin = after_s if after_s > self._began_s else self._began_s
        if (free_s := self._free_s.get(lane, 0.0)) > begin:
            begin = free_s
        end = begin + took_s
        self._began_s, self._free_s[lane] = begin, end
        self._worked.append((end, begin, label, n_bytes, True))
        if self._busy and begin <= (last := self._busy[-1])[1]:
            if end > last[1]:
                self._busy[-1] = last[0], end
        else:
            self._busy.append((begin, end))
        return end

    def _end_beside(self, now: float, left: float) -> float:
        """When work that begins now ends; the storage slows it."""
        beside = self._beside
        for begin, end in self._busy:
            if end <= now:
                continue
            if now + left <= begin:
                break
            if now < begin:
                left -= begin - now
                now = begin
            if left <= (end - now) * beside:
                return now + left / beside
            left -= (end - now) * beside
            now = end
        return now + left

    def record(self, now: float) -> None:
        """Put on record what is over, in the order of the ends."""
        over = sorted([one for one in self._worked if one[0] <= now])
        self._worked = [one for one in self._worked if one[0] > now]
        for end_s, start_s, label, n_bytes, on_storage in over:
            (self._storage if on_storage else self._processor).record(label, start_s, end_s, n_bytes)
        # What is under way has been so until now.
        for begin, end in self._busy:
            self._storage.busy.add(begin, min(end, now))
        self._busy = [one for one in self._busy if one[1] > now]


class TogetherQueues:
    """The same where the processor slows the storage as well: what ends when is known once all is handed over.
    ``beside``: the processor's speed while the storage works, ``reads_beside``: the storage's while the processor
    does."""

    def __init__(self, processor: Processor, storage: CurveStorage, beside: float, reads_beside: float) -> None:
        self._processor, self._storage = processor, storage
        speeds = {"processor": {"storage": beside}, "storage": {"processor": reads_beside}}
        self._queues = SlowingQueues(speeds)
        # What is not on record yet, with its label and bytes.
        self._handed_over: list[tuple[Piece, str, float]] = []

    def begin(self, now_s: float) -> None:
        """What comes next begins no earlier."""
        self._queues.now_s = max(self._queues.now_s, now_s)

    def op(self, label: str, after: Iterable[Piece], cost_s: float, n_bytes: float) -> Piece:
        """Hands over an op that costs so much besides its dispatch."""
        return self._keep(Piece("processor", cost_s, after, fixed_s=self._processor.dispatch_s), label, n_bytes)

    def batch(self, label: str, after: Iterable[Piece], took_s: float, n_bytes: float) -> Piece:
        """Hands over a batch of reads or writes that takes so long by itself."""
        lane = label if self._storage.spec.duplex == "full" else "both"
        return self._keep(Piece("storage", took_s, after, lane=lane), label, n_bytes)

    def _keep(self, piece: Piece, label: str, n_bytes: float) -> Piece:
        self._handed_over.append((self._queues.hand_over(piece), label, n_bytes))
        return piece

    def work_off(self, last: Piece) -> float:
        """When this ends."""
        return self._queues.work_off(last)

    def record(self, now: float) -> None:
        """Put on record what is over, in the order of the ends."""
        over = [
            (piece.end_s, piece.start_s, label, n_bytes, piece.queue == "storage")
            for piece, label, n_bytes in self._handed_over
            if piece.start_s is not None and piece.end_s is not None
        ]
        for end_s, start_s, label, n_bytes, on_storage in sorted(over):
            (self._storage if on_storage else self._processor).record(label, start_s, end_s, n_bytes)
        # What is under way has been so until now.
        busy = [
            (piece.start_s, now if piece.end_s is None else piece.end_s)
            for piece, _, _ in self._handed_over
            if piece.queue == "storage" and piece.start_s is not None
        ]
        for start_s, end_s in sorted(busy):
            self._storage.busy.add(start_s, end_s)
        self._handed_over = [one for one in self._handed_over if one[0].end_s is None]
