"""Storage by its measured bandwidth, against batches computed by hand."""

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from kvferry.machine.busy import Busy
from kvferry.machine.ops import Extents
from kvferry.machine.span import Span
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.sim.contention import Contention
from kvferry.sim.storage import Storage, blocks_in_part, commands_of, merged
from kvferry.sim.storage_curve import Curve, CurveStorage, StorageCurves
from kvferry.specs.storage import CurveRow, MapSpec, StorageSpec

KB = 1000
# Alone: 1 kB in 1 ms, 4 kB in 2 ms, 16 kB in 4 ms. Sixteen at once: a quarter of that for each.
ROWS = (
    CurveRow(depth=1, block_bytes=(1 * KB, 4 * KB, 16 * KB), bytes_per_s=(1e6, 2e6, 4e6)),
    CurveRow(depth=16, block_bytes=(1 * KB, 4 * KB, 16 * KB), bytes_per_s=(4e6, 8e6, 16e6)),
)


def spec(**changes: object) -> StorageSpec:
    """Of lengths that are round in tens: any byte begins a storage block."""
    return StorageSpec.model_validate({"read": ROWS, "block_bytes": 1, **changes})


def apart(*lengths: int) -> Extents:
    """Extents of these lengths that do not touch."""
    return Extents(np.arange(len(lengths)) * 1_000_000, np.array(lengths))


class World:
    def __init__(self, spec: StorageSpec, contention: Contention | None = None) -> None:
        self.env = simpy.Environment()
        self.spans: list[Span] = []
        self.storage: Storage = CurveStorage(self.env, spec, self.spans.append, contention)

    def ends_s(self, *tickets: Ticket) -> list[float | None]:
        self.env.run()
        return [ticket.end_s for ticket in tickets]


def test_computing_slows_commands_while_it_lasts() -> None:
    contention, computing = Contention({"storage": {"gpu": 2.0}}), Busy()
    contention.watch("gpu", computing)
    world = World(spec(read=(), bytes_per_s=1e6), contention)
    read, given_up = (world.storage.read(Extents([0], [n_bytes])) for n_bytes in (4 * KB, 10 * KB))
    # 4 ms: 1 ms alone, 2 ms for one more, and 2 ms alone; of the next 1 ms alone, and 2 ms for one more.
    world.env.run(until=1e-3)
    computing.begin(world.env.now)
    world.env.run(until=3e-3)
    computing.end(world.env.now)
    world.env.run(until=6e-3)
    assert read.end_s == pytest.approx(5e-3)
    computing.begin(world.env.now)
    world.env.run(until=8e-3)
    assert given_up.cancel()
    world.env.run()
    assert [span.n_bytes for span in world.spans] == pytest.approx([4 * KB, 2 * KB])


def test_one_command_takes_what_was_measured() -> None:
    curves = StorageCurves(spec())
    assert curves.batch_s(np.array([1 * KB])) == pytest.approx(1e-3)
    assert curves.batch_s(np.array([16 * KB])) == pytest.approx(4e-3)


def test_between_sizes_bandwidth_is_linear_in_logarithms() -> None:
    # 2 kB lies halfway between 1 and 4 kB: sqrt(1 MB/s x 2 MB/s)
    assert StorageCurves(spec()).batch_s(np.array([2 * KB])) == pytest.approx(2 * KB / (np.sqrt(2) * 1e6))


def test_below_the_smallest_size_a_command_costs_the_same_and_above_the_largest_bandwidth_stays() -> None:
    curves = StorageCurves(spec())
    assert curves.batch_s(np.array([10])) == pytest.approx(1e-3)
    assert curves.batch_s(np.array([160 * KB])) == pytest.approx(40e-3)


def test_many_commands_are_under_way_at_once_up_to_the_queue_depth() -> None:
    lengths = np.full(64, 4 * KB)
    # sixteen at once move 8 MB/s; four, halfway in logarithms, sqrt(2 x 8) MB/s
    assert StorageCurves(spec()).batch_s(lengths) == pytest.approx(64 * 4 * KB / 8e6)
    assert StorageCurves(spec(queue_depth=4)).batch_s(lengths) == pytest.approx(64 * 4 * KB / 4e6)
    assert StorageCurves(spec()).batch_s(lengths[:4]) == pytest.approx(4 * 4 * KB / 4e6)


def test_each_of_mixed_sizes_takes_its_own_share() -> None:
    # 8 of 1 kB at 4 MB/s and 8 of 16 kB at 16 MB/s
    assert StorageCurves(spec()).batch_s(np.array([1 * KB, 16 * KB] * 8)) == pytest.approx(8 * 0.25e-3 + 8 * 1e-3)


@given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=50))
def test_no_mixture_moves_faster_than_the_peak(lengths: list[int]) -> None:
    assert StorageCurves(spec()).batch_s(np.array(lengths)) >= sum(lengths) / 16e6 * (1 - 1e-9)


def test_a_small_command_may_cost_more_than_a_larger_one() -> None:
    # eMMC: 512 B need a detour
    row = CurveRow(depth=1, block_bytes=(512, 4096), bytes_per_s=(512 / 100e-6, 4096 / 55e-6))
    curve = Curve((row,))
    costs = curve.command_s(np.array([512, 1024, 4096]), 1)
    assert costs[0] == pytest.approx(100e-6)
    assert costs[0] > costs[1] > costs[2] == pytest.approx(55e-6)


def test_the_simplest_form_is_a_latency_and_a_rate_for_each_command() -> None:
    curves = StorageCurves(StorageSpec(bytes_per_s=1e6, latency_s=1e-3))
    assert curves.batch_s(np.array([1 * KB, 3 * KB])) == pytest.approx(2e-3 + 4e-3)


@pytest.mark.parametrize(
    ("extents", "commands"),
    [
        (([0, 10, 30], [10, 10, 10]), ([0, 30], [20, 10])),
        (([30, 10, 0], [10, 10, 10]), ([0, 30], [20, 10])),
        (([0, 5], [10, 10]), ([0, 5], [10, 10])),
        (([0, 10, 20], [10, 0, 10]), ([0, 20], [10, 10])),
        (([0, 10], [10, 10]), ([0], [20])),
        (([], []), ([], [])),
    ],
)
def test_extents_that_lie_against_each_other_are_one_command(extents: tuple, commands: tuple) -> None:
    offsets, lengths = merged(*(np.array(numbers, dtype=np.int64) for numbers in extents))
    assert (offsets.tolist(), lengths.tolist()) == commands


def test_batches_come_one_after_the_other() -> None:
    world = World(spec())
    first = world.storage.read(apart(1 * KB), request=7)
    second = world.storage.read(apart(4 * KB))
    nothing = world.storage.read(Extents((), ()))
    assert world.storage.queued == 2
    assert world.ends_s(first, second, nothing) == pytest.approx([1e-3, 3e-3, 3e-3])
    span = world.spans[0]
    assert (span.resource, span.label, span.start_s, span.n_bytes, span.request) == ("storage", "Read", 0.0, 1000, 7)
    assert span.end_s == first.end_s
    assert world.storage.busy.busy_s(0.0, 1.0) == pytest.approx(3e-3)
    assert world.storage.queued == 0


def test_blocks_that_are_written_in_part_are_read_first() -> None:
    """By hand: 100 B over the edge of two blocks of 512 B, and a whole block."""
    world, written = World(spec(block_bytes=512)), Extents(np.array([500, 2048]), np.array([100, 512]))
    parts = blocks_in_part(written, 512)
    assert parts is not None and [of.tolist() for of in parts.arrays] == [[0, 512], [512, 512]]
    world.ends_s(world.storage.write(written))
    assert [(span.label, span.n_bytes) for span in world.spans] == [("Read", 1024), ("Write", 1536)]
    # Also where a block is covered but for its first byte.
    most = World(spec(block_bytes=512))
    most.ends_s(most.storage.write(Extents(np.array([1]), np.array([511]))))
    assert [(span.label, span.n_bytes) for span in most.spans] == [("Read", 512), ("Write", 512)]
    whole = World(spec(block_bytes=512))
    whole.ends_s(whole.storage.write(Extents(np.array([512]), np.array([512]))))
    assert [span.label for span in whole.spans] == ["Write"]


@pytest.mark.parametrize(("duplex", "ends_s"), [("half", [1e-3, 3e-3, 4e-3]), ("full", [1e-3, 2e-3, 2e-3])])
def test_with_full_duplex_a_read_and_a_write_run_beside_each_other(duplex: str, ends_s: list[float]) -> None:
    world = World(spec(duplex=duplex))
    storage = world.storage
    tickets = [storage.read(apart(1 * KB)), storage.write(apart(4 * KB)), storage.read(apart(1 * KB))]
    assert world.ends_s(*tickets) == pytest.approx(ends_s)
    assert [span.label for span in world.spans].count("Write") == 1


def test_writes_have_a_curve_of_their_own() -> None:
    curves = StorageCurves(spec(write=(CurveRow(depth=1, block_bytes=(4 * KB,), bytes_per_s=(1e6,)),)))
    assert curves.batch_s(np.array([4 * KB]), writes=True) == pytest.approx(4e-3)
    assert curves.batch_s(np.array([4 * KB])) == pytest.approx(2e-3)


def test_a_batch_under_way_can_be_cancelled_and_frees_the_device() -> None:
    world = World(spec())
    ticket = world.storage.read(apart(4 * KB))
    behind = world.storage.read(apart(1 * KB))
    world.env.run(until=0.5e-3)
    assert ticket.cancel() == pytest.approx(1 * KB)
    assert isinstance(ticket.value, Cancelled)
    assert world.ends_s(ticket, behind) == pytest.approx([0.5e-3, 1.5e-3])
    assert world.spans[0].n_bytes == pytest.approx(1 * KB)
    assert ticket.cancel() == 0.0


def test_a_batch_that_waits_can_be_cancelled() -> None:
    world = World(spec())
    first, second, third = (world.storage.read(apart(1 * KB)) for _ in range(3))
    assert second.cancel() == 0.0
    assert world.ends_s(first, third) == pytest.approx([1e-3, 2e-3])


def test_what_waits_for_other_work_holds_up_what_is_behind_it() -> None:
    world = World(spec(duplex="full"))
    gate = Ticket(world.env)
    waiting = world.storage.write(apart(1 * KB), after=(gate,))
    behind = world.storage.read(apart(1 * KB))
    world.env.timeout(1.0).callbacks.append(lambda _: gate.settle(None, 0.0, 1.0))
    assert world.ends_s(waiting, behind) == pytest.approx([1.001, 1.001])


# In blocks of 1 KiB: one takes 1 ms, four 2 ms, at any depth.
KIB = 1024
IN_BLOCKS = {
    "block_bytes": KIB,
    "read": (CurveRow(depth=1, block_bytes=(KIB, 4 * KIB), bytes_per_s=(1.024e6, 2.048e6)),),
}


def priced(storage: CurveStorage, *many: tuple[np.ndarray, np.ndarray]) -> list[tuple[float, float]]:
    """Seconds and bytes of reads that come one after the other."""
    found = storage.priced(many)
    assert found is not None
    return [(storage.priced_s(one), one.n_bytes) for one in found]


def test_several_reads_are_priced_in_one_call() -> None:
    """Of one block and four, of four and four, and of one: 3, 4 and 1 ms."""
    storage = CurveStorage(simpy.Environment(), spec(**IN_BLOCKS, queue_depth=2), lambda span: None)
    # Blocks begin at multiples of 1 KiB.
    many = [(of.arrays[0] & -KIB, of.arrays[1]) for of in (apart(KIB, 4 * KIB), apart(4 * KIB, 4 * KIB), apart(KIB))]
    assert priced(storage, *many) == [
        (pytest.approx(3e-3), 5120.0),
        (pytest.approx(4e-3), 8192.0),
        (pytest.approx(1e-3), 1024.0),
    ]
    # Extents of one read that lie against each other are one command, those of two reads are not.
    against, behind = (np.arange(4) * KIB, np.full(4, KIB)), (np.array([4 * KIB]), np.array([KIB]))
    assert priced(storage, against, behind) == [(pytest.approx(2e-3), 4096.0), (pytest.approx(1e-3), 1024.0)]
    further = np.array([5 * KIB]), np.array([KIB])
    assert priced(storage, behind, further) == [(pytest.approx(1e-3), 1024.0)] * 2
    # Beyond the table of sizes: 1,000 blocks, at the rate of four, and one.
    long = np.array([0, 2000 * KIB]), np.array([1000 * KIB, KIB])
    assert priced(storage, long, behind)[0] == (pytest.approx(0.501), 1001 * 1024.0)
    assert storage.priced([behind, (np.array([0]), np.array([0]))]) is None


def test_reads_that_are_priced_together_miss_the_map_as_they_come() -> None:
    table = MapSpec(covers_bytes=1000 * KIB, miss_s=1e-3)
    storage = CurveStorage(simpy.Environment(), spec(**IN_BLOCKS, map=table, queue_depth=2), lambda span: None)
    one = np.array([KIB])
    mixed = np.array([0, 2 * KIB]), np.array([KIB, 4 * KIB])
    # Up to 1 KiB all entries are there; from 0 to 4,000 KiB a quarter.
    found = priced(storage, (np.array([0]), one), (np.array([3999 * KIB]), one), mixed)
    assert [took_s for took_s, _ in found] == pytest.approx([1e-3, 1.75e-3, 4.5e-3])


def test_the_map_costs_nothing_until_accesses_spread_beyond_it() -> None:
    world = World(spec(map=MapSpec(covers_bytes=1e6, miss_s=1e-3)))
    near = world.storage.read(Extents((0, 900_000), (1 * KB, 1 * KB)))
    # from 0 to 4 MB: a quarter of the entries are there
    far = world.storage.read(Extents((4_000_000 - 1 * KB,), (1 * KB,)))
    near_s, far_s = world.ends_s(near, far)
    pair_s = StorageCurves(spec()).batch_s(np.full(2, 1 * KB))
    assert near_s == pytest.approx(pair_s)
    assert far_s == pytest.approx(pair_s + 1e-3 + 0.75e-3)


@pytest.mark.parametrize(("merges", "seconds"), [(True, 2e-3), (False, 4e-3)])
def test_a_host_that_does_not_merge_gives_a_command_for_each_extent(merges: bool, seconds: float) -> None:
    # One at a time, 4 kB take 2 ms, and 1 kB takes 1 ms.
    world = World(spec(merges=merges, queue_depth=1))
    ticket = world.storage.read(Extents((3 * KB, 1 * KB, 0, 2 * KB, 9 * KB), (KB, KB, KB, KB, 0)))
    assert world.ends_s(ticket) == pytest.approx([seconds])


def test_what_shares_a_storage_block_is_read_with_it() -> None:
    """Entries of 256 B at 0, 512, 5,000 and 20,000: the first two lie in one block of 4 KiB, the third in the next one,
    the last in one apart."""
    asked = Extents((20_000, 0, 5_000, 512), (256, 256, 256, 256))
    together = StorageSpec(bytes_per_s=1e9, block_bytes=4096)
    assert [part.tolist() for part in commands_of(asked, together)] == [[0, 16_384], [8192, 4096]]
    apart = together.model_copy(update={"merges": False})
    assert [part.tolist() for part in commands_of(asked, apart)] == [[0, 0, 4096, 16_384], [4096] * 4]


@given(st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 10**4)), max_size=20))
def test_commands_cover_what_is_asked_and_are_apart(ranges: list[tuple[int, int]]) -> None:
    spec = StorageSpec(bytes_per_s=1e9, block_bytes=512)
    asked = Extents([offset for offset, _ in ranges], [length for _, length in ranges])
    offsets, lengths = commands_of(asked, spec)
    ends = offsets + lengths
    assert (offsets % 512 == 0).all() and (lengths % 512 == 0).all()
    assert (offsets[1:] > ends[:-1]).all()
    covered = {
        block for offset, length in zip(offsets, lengths, strict=True) for block in range(offset, offset + length, 512)
    }
    wanted = {byte & -512 for offset, length in ranges if length for byte in range(offset, offset + length)}
    assert covered == wanted
