"""One turn whose KV comes block by block: what is lacking is read, wherever in the prompt it stands."""

import pytest
from tiny import tiny_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from kvferry.model.decoders import decoder_of  # noqa: E402
from kvferry.model.kv import NotReady  # noqa: E402
from kvferry.model.models import random_model  # noqa: E402
from kvferry.model.turn_session import TurnSession  # noqa: E402
from kvferry.specs.errors import KvferryError  # noqa: E402

MODEL = random_model("qwen3", tiny_model(), seed=1, dtype="float32", device="cpu")
IDS = torch.randint(0, 61, (1, 45), generator=torch.Generator().manual_seed(1))[0].tolist()
ROTARY = decoder_of(MODEL, latent=False).rotary(64)


def begun(ids: list[int] = IDS) -> TurnSession:
    return TurnSession(MODEL, ids, block=8, output=6, rotary=ROTARY)


@torch.no_grad()
def answered(session: TurnSession, tokens: int = 5) -> list[int]:
    lacking = session.lacking
    for layer in range(session.decoder.layers):
        session.read_layer(layer, lacking)
    answer = [session.next_token()]
    while len(answer) < tokens:
        answer.append(session.after(answer[-1]))
    return answer


@torch.no_grad()
def by_transformers(ids: list[int], tokens: int = 5) -> list[int]:
    whole = list(ids)
    for _ in range(tokens):
        whole.append(int(MODEL(torch.tensor([whole])).logits[0, -1].argmax()))
    return whole[len(ids) :]


@pytest.mark.parametrize("there", [(), (0,), (0, 1, 2, 3, 4), (0, 2), (1, 4), (3,)])
def test_what_is_lacking_is_read_between_what_is_there(there: tuple[int, ...]) -> None:
    other = begun()
    wanted = answered(other)
    assert wanted == by_transformers(IDS)
    session = begun()
    for block in there:
        session.put_block(block, other.block_of(block))
    # The last 5 of 45 tokens stand behind the last block.
    assert session.lacking == 45 - 8 * len(there)
    assert answered(session) == wanted
    # 45 tokens and 4 of the answer are six blocks, the last of them its own.
    for block in range(6):
        torch.testing.assert_close(session.block_of(block), other.block_of(block), rtol=1e-4, atol=1e-5)
    with pytest.raises(NotReady, match="block 6 ends with token 56, 49 are there"):
        session.block_of(6)


def test_a_whole_number_of_blocks_has_its_last_one_read() -> None:
    session = begun(IDS[:40])
    assert len(session.kv.tokens) == 4 and session.lacking == 40
    assert answered(session) == by_transformers(IDS[:40])


def test_buffers_of_a_turn_that_is_over_serve_the_next() -> None:
    first = begun()
    answered(first)
    second = TurnSession(MODEL, IDS[3:40], block=8, output=6, rotary=ROTARY, spare=first.kv)
    assert second.kv.keys.data_ptr() == first.kv.keys.data_ptr()
    assert second.lacking == 37
    assert answered(second) == by_transformers(IDS[3:40])
    # Too small for a longer one.
    longer = TurnSession(MODEL, IDS * 4, block=8, output=6, rotary=ROTARY, spare=first.kv)
    assert longer.kv.keys.data_ptr() != first.kv.keys.data_ptr()


def test_ops_out_of_turn() -> None:
    session = begun()
    with pytest.raises(KvferryError, match="44 tokens are to be read, and KV of 45 is lacking"):
        session.read_layer(0, 44)
    with torch.no_grad():
        session.read_layer(0, 45)
        with pytest.raises(KvferryError, match="layer 0 of a prompt|layer 2 of a prompt that has passed 1"):
            session.read_layer(2, 45)
    with pytest.raises(KvferryError, match="the prompt has passed 1 of 2 layers"):
        session.next_token()


def test_an_answer_that_is_taken_back_is_forgotten() -> None:
    session = begun()
    answered(session, tokens=1)
    for answer in ([7], [7, 8, 9], [7, 40, 2], [50], [50, 1, 2, 3]):
        with torch.no_grad():
            assert [session.behind(answer)] == by_transformers([*IDS, *answer], 1)
        assert session.history == [*IDS, *answer]


def test_layers_that_come_one_by_one() -> None:
    other, session = begun(), begun()
    wanted = answered(other)
    session.coming = frozenset({0, 3})
    assert session.lacking == 45 - 16
    at = torch.tensor([*range(8), *range(24, 32)])
    with torch.no_grad():
        for layer in range(session.decoder.layers):
            session.put_layer(layer, at, other.kv.keys[layer][:, :, at], other.kv.values[layer][:, :, at])
            session.read_layer(layer, 29)
    assert session.next_token() == wanted[0]
