"""Stored contexts of a real run: a server that hands them out, a client that fetches them, and their decoders."""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from kvferry.backends.live.engine.link import FETCHES_AHEAD, Fetched
from kvferry.backends.live.loading.library import Library
from kvferry.backends.world import Say
from kvferry.cloud.client import CloudClient, CloudGone
from kvferry.cloud.requests import WrongToken
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import DamagedStore, Index
from kvferry.codecs import codec
from kvferry.codecs.pool import CodecPool
from kvferry.machine.ops import Decompress
from kvferry.specs.errors import InputError, LinkDown
from kvferry.specs.scenario import Scenario
from kvferry.traces.stored import StoredContext

TOKEN = "KVFERRY_TOKEN"


class CloudOfContexts:
    """The contexts of a `library`, behind the scenario's link. ``stored``: their sizes, by number. `number_of` says for
    a sequence which context it reads. `takes`: the server of this run keeps what it is sent. `stack` closes server,
    client and decoders."""

    def __init__(
        self,
        scenario: Scenario,
        codec_name: str,
        library: Library,
        say: Say,
        stack: ExitStack,
        number_of: Callable[[int], int] = int,
        *,
        takes: bool = False,
    ) -> None:
        self._scenario, self._library, self._number_of = scenario, library, number_of
        self._codec_name = codec_name
        sequences = range(len(library.asked.contexts))
        self._stores = names = [library.name(n, codec_name) for n in sequences]
        url, token = scenario.context_reuse.live.cloud, os.environ.get(TOKEN)
        if url is None:
            for n in sequences:
                library.ensure(n, codec_name, say)
            # A secret of the two, where others could have files kept.
            token = secrets.token_hex(16) if takes else None
            server = ServerProcess(library.folder, scenario.link, token=token, takes=takes)
            url = stack.enter_context(server).url
        self.client = stack.enter_context(CloudClient(url, token=token, names=self._name_of))
        self.stored, self._gone = self._weighed(names, codec_name, say)
        self._pool = stack.enter_context(CodecPool(scenario.device.decompressor.workers))
        self._pool.decode(self._first_chunks(codec_name)).result()

    def machine_options(self) -> dict[str, Any]:
        return {
            "fetcher": self._gone or self.client,
            "decode": self._decode,
            "decompress_workers": self._scenario.device.decompressor.workers,
        }

    def begin(self) -> None:
        """Connects, and has the link's replay begin."""
        if self._gone is None:
            self.client.connect(FETCHES_AHEAD)
        if self._scenario.context_reuse.live.cloud is None and self._gone is None:
            with suppress(LinkDown):  # the fetches will tell
                self.client.restart_replay()

    def decoded(self, came: Any) -> Iterator[tuple[int, Any, Any]]:
        """Yields the number of each chunk that came, its keys and its values. Raises DamagedChunk."""
        if isinstance(came, Fetched):  # nothing is entropy-coded: numbers are restored where they are used
            fetched, decoded = came, codec.decode_many(self._split(came))
        else:
            fetched, decoded = came
        for chunk, (keys, values) in zip(fetched.chunks.ids, decoded, strict=True):
            yield chunk, keys, values

    def _name_of(self, sequence: int) -> str:
        """Returns the name of the store that a fetch of this sequence is from."""
        return self._stores[self._number_of(sequence)]

    def _tokens_of(self, sequence: int) -> Sequence[int]:
        """Returns the tokens of each token chunk that may be fetched for a sequence."""
        return self._library.tokens(self._number_of(sequence))

    def _weighed(self, names: Sequence[str], codec_name: str, say: Say) -> tuple[list[StoredContext], CloudGone | None]:
        """The contexts with the sizes of their stores. Without the cloud, or with a damaged index there, everything is
        computed locally: then the sizes are the modelled ones, and the second value is what fetches fail with."""
        try:
            return [self._library.stored(n, self._index(n, name, codec_name)) for n, name in enumerate(names)], None
        except (LinkDown, DamagedStore) as error:
            say(f"nothing can be fetched: {error}")
            return [self._library.estimated(n, codec_name) for n in range(len(names))], CloudGone(str(error))

    def _index(self, sequence: int, name: str, codec_name: str) -> Index:
        try:
            index = self.client.index(name)
            self._library.check(sequence, codec_name, index)
            return index
        except WrongToken as error:
            has = "holds another" if os.environ.get(TOKEN) else "is not set"
            raise InputError(f"live.cloud: {error}; it is taken from {TOKEN}, which {has}") from None
        except InputError as error:
            if self._scenario.context_reuse.live.cloud is None:
                raise
            raise InputError(
                f"live.cloud: context {sequence} of this scenario cannot be had: {error}; "
                f"`kvferry encode` makes its store for the server's folder"
            ) from None

    def _first_chunks(self, codec_name: str) -> list[bytes]:
        heads = np.zeros(
            (self._scenario.context_reuse.workload.chunk_tokens, self._scenario.model.head_dim), np.float32
        )
        return [codec.encode(codec_name, heads, heads)]

    def _decode(self, op: Decompress, request: int | None, inputs: Sequence[Any]) -> "tuple[Fetched, Any]":
        fetched: Fetched = inputs[0]
        return fetched, self._pool.decode(self._split(fetched)).result()

    def _split(self, fetched: Fetched) -> list[memoryview]:
        """The chunks of a payload. Raises DamagedChunk when they are not the ones that were fetched: the checksums of a
        store fit whatever its writer has put there, two chunks in place of one as well."""
        chunks, ids = codec.split(fetched.payload), fetched.chunks.ids
        if len(chunks) != len(ids):
            raise codec.DamagedChunk(f"{len(chunks)} encoded chunks came in place of {len(ids)}")
        spec, tokens = self._scenario.model, self._tokens_of(fetched.chunks.sequence)
        for i, chunk in zip(ids, chunks, strict=True):
            wanted = codec.Shape(
                self._codec_name, fetched.chunks.level, tokens[i // (spec.layers * spec.kv_heads)], spec.head_dim
            )
            if (came := codec.shape_of(chunk)) != wanted:
                raise codec.DamagedChunk(f"chunk {i} is {came}, not {wanted}")
        return chunks
