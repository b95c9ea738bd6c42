"""A context on a real model: any mix of loaded and computed KV must answer as a plain forward pass does."""

from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest
from tiny import tiny_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from logits import LOGIT_TOLERANCE
from transformers import DynamicCache

from kvferry.model.decoder import Decoder
from kvferry.model.kv import NotReady, SessionKv
from kvferry.model.models import random_model
from kvferry.model.session import Session
from kvferry.specs.errors import InputError, KvferryError

pytestmark = pytest.mark.torch

SPEC = tiny_model(layers=3, hidden=64, head_dim=16, ffn=96, vocabulary=97)
# Three whole chunks and a partial one.
CHUNK, CHUNKS = 24, 4
CONTEXT = np.random.default_rng(1).integers(0, SPEC.vocabulary, 24 * 3 + 7).tolist()
QUESTION = np.random.default_rng(2).integers(0, SPEC.vocabulary, 5).tolist()
ROPES = {
    "plain": None,
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Truth:
    """A model, its plain forward pass over context and question, and the KV of the context."""

    def __init__(self, family: str, dtype: str = "float32", rope: str = "plain") -> None:
        self.model = random_model(family, SPEC, seed=3, dtype=dtype, spread=0.2, rope=ROPES[rope])
        cache = DynamicCache()
        with torch.no_grad():
            self.logits = self.model(torch.tensor([CONTEXT + QUESTION]), past_key_values=cache).logits[0, -1]
        self._cache = cache

    def chunk(self, t: int, l: int, h: int) -> tuple[torch.Tensor, torch.Tensor]:
        layer, span = self._cache.layers[l], slice(t * CHUNK, min((t + 1) * CHUNK, len(CONTEXT)))
        return layer.keys[0, h, span], layer.values[0, h, span]

    def session(self) -> Session:
        return Session(self.model, CONTEXT, chunk_tokens=CHUNK, room=16)

    def load(self, session: Session, t: int, l: int) -> None:
        for h in range(SPEC.kv_heads):
            session.load(t, l, h, *self.chunk(t, l, h))

    def check(self, session: Session) -> None:
        assert error(session.read(QUESTION), self.logits) < LOGIT_TOLERANCE[self.model.dtype]


def error(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest difference, in standard deviations of the reference."""
    return float((logits.float() - reference.float()).abs().max() / reference.float().std())


@pytest.fixture(scope="module")
def truths() -> dict[tuple[str, str, str], Truth]:
    return {}


@pytest.fixture(params=sorted(Decoder.families))
def truth(request: pytest.FixtureRequest, truths: dict[tuple[str, str, str], Truth]) -> Truth:
    return truths.setdefault((request.param, "float32", "plain"), Truth(request.param))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", sorted(Decoder.families))
def test_local_prefill_answers_as_a_plain_forward_pass(family: str, dtype: str) -> None:
    truth = Truth(family, dtype)
    session = truth.session()
    session.prefill()
    truth.check(session)


@pytest.mark.parametrize("rope", sorted(set(ROPES) - {"plain"}))
def test_stretched_rotary_embeddings(rope: str) -> None:
    truth = Truth("qwen3", rope=rope)
    session = truth.session()
    truth.load(session, 0, 1)
    session.prefill()
    truth.check(session)
    assert error(truth.logits, Truth("qwen3").logits) > 100 * LOGIT_TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(Decoder.families))
def test_stream_only(family: str, dtype: str) -> None:
    truth = Truth(family, dtype)
    session = truth.session()
    for t in range(CHUNKS):
        for l in range(SPEC.layers):
            assert not session.complete
            truth.load(session, t, l)
    assert session.complete
    truth.check(session)


def test_random_mixes_in_random_order(truth: Truth) -> None:
    """Legal steps drawn one by one: project, advance, or load a single head, also of what is there already."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        eager = rng.random()  # how much is computed rather than loaded
        session = truth.session()
        while not session.complete:
            t, l, h = (int(rng.integers(n)) for n in (CHUNKS, SPEC.layers, SPEC.kv_heads))
            if rng.random() > eager:
                session.load(t, l, h, *truth.chunk(t, l, h))
            elif rng.random() < 0.5:
                session.project(t, session.depth[t])
            elif session.depth[t] < SPEC.layers - 1 and not session.kv.missing(session.depth[t], t + 1):
                session.advance(t, session.depth[t])
        truth.check(session)


def test_a_chain_like_schedule(truth: Truth) -> None:
    """Non-increasing depths: the front computed, the rest streamed from the back."""
    session = truth.session()
    depths = [3, 2, 2, 0]
    for t in reversed(range(CHUNKS)):
        for l in reversed(range(depths[t], SPEC.layers)):
            truth.load(session, t, l)
    session.prefill()
    assert session.depth == [2, 1, 1, 0]
    truth.check(session)


def test_everything_computed_and_streamed_alike(truth: Truth) -> None:
    session = truth.session()
    for t in range(CHUNKS):
        for l in range(SPEC.layers):
            if (t + l) % 2:
                truth.load(session, t, l)
            if l > 0:
                session.advance(t, l - 1)
            session.project(t, l)
            assert not session.load(t, l, 0, *truth.chunk(t, l, 0))
    truth.check(session)


def test_a_streamed_chunk_does_not_block_its_own_column(truth: Truth) -> None:
    """Advancing with loaded KV, never projected, is as good."""
    session = truth.session()
    for t in range(CHUNKS):
        truth.load(session, t, 0)
        session.advance(t, 0)
        session.project(t, 1)
        session.advance(t, 1)
        session.project(t, 2)
    truth.check(session)


def test_dropped_chunks_come_back_from_either_path(truth: Truth) -> None:
    session = truth.session()
    session.prefill()
    session.drop(1, 0)
    session.drop(3, 2, 1)
    assert not session.complete
    with pytest.raises(NotReady, match=r"missing in layers \[0, 2\]"):
        session.read(QUESTION)
    with pytest.raises(NotReady, match="has passed it"):
        session.project(1, 0)
    session.project(3, 2)
    truth.load(session, 1, 0)
    truth.check(session)


def test_a_wrong_chunk_is_seen_in_the_logits(truth: Truth) -> None:
    """The tolerance can be missed: one head of one chunk exchanged for another is 100 times over it."""
    session = truth.session()
    session.load(1, 1, 0, *truth.chunk(2, 1, 0))
    session.prefill()
    truth.check(session)  # the other head was missing, so all heads were computed over it
    session = truth.session()
    for h in range(SPEC.kv_heads):
        session.load(1, 1, h, *truth.chunk(2, 1, h))
    session.prefill()
    assert error(session.read(QUESTION), truth.logits) > 100 * LOGIT_TOLERANCE[torch.float32]


def test_what_is_not_ready_is_named(truth: Truth) -> None:
    session = truth.session()
    with pytest.raises(NotReady, match="chunk 2 cannot attend in layer 0: KV of token chunks 0, 1, 2 is missing"):
        session.advance(2, 0)
    with pytest.raises(NotReady, match="chunk 2 has no hidden state below layer 1: its column stands below layer 0"):
        session.project(2, 1)
    with pytest.raises(NotReady, match=r"missing in layers \[0, 1, 2\]"):
        session.cache()
    with pytest.raises(NotReady, match="head 1 is not there"):
        session.kv.chunk(0, 0, 1)


def test_steps_done_already_are_not_done_again(truth: Truth) -> None:
    session = truth.session()
    session.project(0, 0)
    session.advance(0, 0)
    keys = session.kv.chunk(0, 0, 0)[0].clone()
    session.advance(0, 0)
    session.project(0, 0)
    assert session.depth[0] == 1
    assert torch.equal(keys, session.kv.chunk(0, 0, 0)[0])


def test_generate_continues_from_the_session(truth: Truth) -> None:
    session = truth.session()
    for t in range(CHUNKS):
        truth.load(session, t, t % SPEC.layers)
    session.prefill()
    plain = truth.model.generate(torch.tensor([CONTEXT + QUESTION]), max_new_tokens=50, do_sample=False)
    wanted = plain[0, -50:].tolist()
    truth.check(session)
    # 79 + 5 + 50 tokens are more than the buffers' 128; and once more, as nothing of the first answer may stay.
    assert session.generate(QUESTION, max_new_tokens=50, do_sample=False) == wanted
    assert session.generate(QUESTION, max_new_tokens=50, do_sample=False) == wanted
    truth.check(session)  # reading begins again from the context


def test_reading_token_by_token_is_what_generate_does(truth: Truth) -> None:
    session = truth.session()
    session.prefill()
    wanted = session.generate(QUESTION, max_new_tokens=8, do_sample=False)
    answer: list[int] = []
    for _ in range(8):
        answer.append(int(session.read(answer[-1:] or QUESTION).argmax()))
    assert answer == wanted


def test_an_older_cache_says_that_it_was_replaced(truth: Truth) -> None:
    session = truth.session()
    session.prefill()
    old = session.cache()
    session.read(QUESTION)
    with pytest.raises(KvferryError, match="replaced by a newer"), torch.no_grad():
        truth.model(torch.tensor([QUESTION]), past_key_values=old)


def test_buffers_are_used_again(truth: Truth) -> None:
    first = truth.session()
    first.prefill()
    again = Session(truth.model, CONTEXT, chunk_tokens=CHUNK, kv=first.kv)
    assert not again.complete
    again.prefill()
    truth.check(again)
    with pytest.raises(InputError, match="another context"):
        Session(truth.model, CONTEXT[:-1], chunk_tokens=CHUNK, kv=first.kv)


def test_loading_from_another_thread_while_computing(truth: Truth) -> None:
    for seed in range(3):
        session = truth.session()
        places = [(t, l) for t in range(CHUNKS) for l in range(SPEC.layers)]
        np.random.default_rng(seed).shuffle(places)
        loading = Thread(target=lambda places=places, session=session: [truth.load(session, *at) for at in places])
        loading.start()
        session.prefill()
        loading.join()
        truth.check(session)


def test_loads_in_arrays_and_other_dtypes() -> None:
    truth = Truth("llama")
    session = truth.session()
    keys, values = zip(*(truth.chunk(0, 0, h) for h in range(SPEC.kv_heads)), strict=True)
    assert session.load(0, 0, None, torch.stack(keys).numpy(), torch.stack(values).double())
    assert torch.equal(session.kv.chunk(0, 0, 1)[1], values[1])
    assert not session.load(0, 0, 1, *truth.chunk(0, 0, 0))
    session.prefill()
    truth.check(session)


def test_input_errors() -> None:
    truth = Truth("llama")
    for context in ([], [SPEC.vocabulary], [-1]):
        with pytest.raises(InputError, match=r"0\.\.96"):
            Session(truth.model, context)
    with pytest.raises(InputError, match="at least one token"):
        Session(truth.model, CONTEXT, chunk_tokens=0)
    session = truth.session()
    with pytest.raises(InputError, match=r"came as \(7, 16\).*need \(24, 16\)"):
        session.load(0, 0, 0, *truth.chunk(3, 0, 0))
    with pytest.raises(InputError, match=r"need \(2, 24, 16\)"):
        session.load(0, 0, None, *truth.chunk(0, 0, 0))
    session.prefill()
    with pytest.raises(InputError, match="num_beams=2: a session decodes one sequence"):
        session.generate(QUESTION, num_beams=2)
    with pytest.raises(InputError, match="does not fit"):
        Session(truth.model, CONTEXT, room=10**13)


def test_sizes_by_hand() -> None:
    # 3 + 2 tokens and room for 60: one key block too few, so two. K and V x 2 layers x 128 x 4 numbers of 4 bytes.
    kv = SessionKv([3, 2], layers=2, heads=1, head_dim=4, room=60, dtype=torch.float32, device=torch.device("cpu"))
    assert (kv.starts, kv.total_tokens, kv.capacity, kv.n_bytes) == ((0, 3), 5, 128, 8192)
