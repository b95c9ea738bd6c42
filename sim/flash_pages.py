"""Which pages of a flash device a command is about, and what each keeps busy."""

from kvferry.specs.storage import FlashSpec

# A command with more pages per die than this is simulated in groups of one die's pages: its first byte moves later by
# less than one part in this number, and a gigabyte does not become a million events.
_GROUPS_PER_DIE = 16

# Some of a command's pages: (die, seconds of the die, of its channel, of the bus)
Piece = tuple[int, float, float, float]


class FlashPages:
    """Page p lies on die p mod dies. A die senses whole pages, its channel moves whole sectors, and the bus to the host
    what was asked for."""

    def __init__(self, spec: FlashSpec) -> None:
        self._spec, self._dies = spec, spec.channels * spec.dies
        self._page_bytes, self._sector_bytes = int(spec.page_bytes), int(spec.sector_bytes)
        self._channel_s_per_byte, self._bus_s_per_byte = 1 / spec.channel_bytes_per_s, 1 / spec.bus_bytes_per_s

    def of(self, offset: int, length: int, writes: bool) -> list[Piece]:
        """A command's pages, or groups of a die's pages when they are many."""
        page, sector, dies = self._page_bytes, self._sector_bytes, self._dies
        on_channel, on_bus = self._channel_s_per_byte, self._bus_s_per_byte
        page_s = self._spec.page_program_s if writes else self._spec.page_read_s
        end = offset + length
        first, last = offset // page, (end - 1) // page
        n_pages = last - first + 1
        pieces: list[Piece] = []
        if n_pages <= _GROUPS_PER_DIE * dies:
            for number in range(first, last + 1):
                begin = offset if number == first else number * page
                stop = end if number == last else number * page + page
                sectors = (-(-stop // sector) - begin // sector) * sector
                die_s = page_s * sectors / page if writes else page_s
                pieces.append((number % dies, die_s, sectors * on_channel, (stop - begin) * on_bus))
            return pieces
        channel_s = (-(-end // sector) - offset // sector) * sector * on_channel
        size = n_pages // (_GROUPS_PER_DIE * dies)
        for begin in range(0, -(-n_pages // dies), size):
            for at in range(dies):
                # This die's pages are at, at + dies, ... of the command.
                pages = min(begin + size, -(-(n_pages - at) // dies)) - begin
                if pages > 0:
                    share = pages / n_pages
                    pieces.append(((first + at) % dies, pages * page_s, channel_s * share, length * on_bus * share))
        return pieces
