"""A run's quality: equal to what the study of systems measures, and full where attention is."""

import importlib
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin import RANDOM, none_left, written  # noqa: F401
from small_decoding import small_model
from tiny import LIVE_DECODING, LIVE_PLAIN, changed, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.handles import Attended
from kvferry.pipelines.plugins import use
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

pytest.importorskip("torch")

import torch

from kvferry.backends.live.decoding.build import sample_of
from kvferry.backends.live.quality import tasks
from kvferry.backends.live.quality.attended_tokens import AttendedTokens
from kvferry.backends.live.quality.tasks import needle
from kvferry.model.models import load_model
from kvferry.model.prompts import Prompts

pytestmark = pytest.mark.torch

WORDS = (
    *("the", "of", "a", "model", "device", "link", "cache", "token", "layer", "head", "is"),
    *("was", "reads", "writes", "slow", "fast", "and", "or", "not", "every", "some"),
)
STUDIES = Path(__file__).parents[4] / "studies"
CONTEXT, OUTPUT = 150, 30


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("text") / "words.txt"
    rng = np.random.default_rng(5)
    lines = (" ".join(WORDS[n] for n in rng.integers(0, len(WORDS), 8)) + "." for _ in range(400))
    file.write_text("\n".join(lines) + "\n")
    return file


def of_text(text: Path, system: str, *settings: str) -> Scenario:
    return load_scenario(
        "kvswap/live",
        [
            f"system={system}",
            "model=byte-small",
            "precision.kv_value_bytes=4",
            "live.dtype=float32",
            "live.paced=false",
            "live.quality=true",
            f"live.text={text}",
            "workload.batch=1",
            "workload.context=256",
            "workload.output=24",
            "budget={kv: 1 GiB}",
            *settings,
        ],
    )


def metrics(scenario: Scenario) -> dict[str, float]:
    run = run_scenario(scenario)
    assert run.outcome == "done"
    return metrics_for(scenario, run)


@pytest.mark.parametrize(
    ("system", "task"), [*((one, "text") for one in ("infinigen", "kvswap", "loki", "shadowkv")), ("kvswap", "needle")]
)
def test_it_is_what_the_study_measures(text: Path, monkeypatch: pytest.MonkeyPatch, system: str, task: str) -> None:
    """Indexes learn from the same text in both, which holds nothing of what is said."""
    monkeypatch.syspath_prepend(str(STUDIES))
    study = importlib.import_module("quality_systems")
    monkeypatch.setattr(tasks, "NEEDLES", 2)
    model = load_model("byte-small", "float32")
    prompts = Prompts(Path(model.config.name_or_path), model.config.vocab_size, text, 0)
    context, is_text = (256, True) if task == "text" else (150, False)
    output = 24 if is_text else len(needle(prompts, 0, context).said)
    asked = Namespace(context=context, selected=[64], share=None, said=output, ways=[system])
    asked.texts, asked.needles = int(is_text), int(not is_text)
    studied = study.measure(asked, model, prompts)["ways"][f"{system}, 64 tokens"]
    own = {"kvswap": "group_tokens: 8, compression: 8, reuse: false, "}.get(system, "")
    policies = f"policies={{{own}selected_tokens: 64}}"
    lengths = (f"live.task={task}", f"workload.context={context}", f"workload.output={output}")
    found = metrics(of_text(text, system, *lengths, policies))
    same = {column: found[metric] for column, metric in study.METRICS.items() if metric in found and column in studied}
    assert same == pytest.approx({column: studied[column] for column in same}, abs=1e-6)
    assert same.keys() == ({"agree", "KL", "hits", "mass", "perplexity"} if is_text else {"needles"})
    assert found["kl_p95_nats"] > found["kl_nats"] > 0.001 and "attention_mass_spread" not in found


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer, as a folder."""
    folder: Path = tmp_path_factory.mktemp("weights")
    small_model().save_pretrained(folder)
    return folder


def drawn(weights: Path, system: str, **changes: Any) -> Scenario:
    described = changed(LIVE_PLAIN, workload={"context": CONTEXT, "batch": 2, "output": OUTPUT}, system=system)
    return tiny(changed(described, live={"weights": str(weights), "quality": True}), **changes)


@pytest.mark.parametrize("system", ["flexgen", "os-paging", "vllm", "kvswap", "shadowkv", "dynakv", "clusterkv"])
def test_all_tokens_are_full_attention(weights: Path, system: str) -> None:
    """What a model says by itself is judged where there is no text."""
    policies: dict[str, Any] = {}
    if system in ("kvswap", "shadowkv"):
        policies = {"policies": {"selected_tokens": CONTEXT + OUTPUT, "compression": 1}}
    if system in ("dynakv", "clusterkv"):
        policies = {"policies": {"selected_share": 1.0, "group_tokens": 8}}
    tight = {"os-paging": {"kv": "60 KiB"}, "vllm": {"kv": None, "in_memory_kv": "2 MiB"}}.get(system, {"kv": "90 MiB"})
    found = metrics(drawn(weights, system, budget=tight, **policies))
    assert found["agreement_share"] == 1.0
    assert found["attention_mass"] == pytest.approx(1.0, abs=1e-6)
    assert found.get("recall_share", 1.0) == 1.0
    assert abs(found["kl_nats"]) < 1e-5
    assert "perplexity" not in found and "right_share" not in found


@pytest.mark.parametrize("system", ["kvswap", "infinigen", "shadowkv", "quest", "dynakv", "pqcache", "clusterkv"])
def test_tokens_that_are_noted_are_those_that_the_pipeline_counts(weights: Path, system: str) -> None:
    """Summed over rows, layers and steps; of clusters as they grow and are cut. Few tokens are not full attention."""
    policies: dict[str, Any] = {"selected_tokens": 32}
    if system in ("dynakv", "pqcache", "clusterkv"):
        policies = {"selected_share": 0.2, "group_tokens": 8}
    if system == "dynakv":
        # So tight that clusters which were not read gain tokens, and wait to be cut.
        policies |= {"threshold": 0.7}
    wanted = drawn(weights, system, budget={"kv": "90 MiB"}, policies=policies)
    with pytest.MonkeyPatch.context() as seen:
        kept: list[Any] = []
        make = AttendedTokens.__init__

        def noted(self: Any, *given: Any, **named: Any) -> None:
            make(self, *given, **named)
            kept.append(self)

        seen.setattr(AttendedTokens, "__init__", noted)
        found = metrics(wanted)
    (tokens,), heads = kept, wanted.model.kv_heads
    # The pipeline has them of all rows together, in whole tokens of a row.
    taken = [
        math.ceil(sum(int(tokens.all(layer, step, sequence, heads).sum()) for sequence in range(2)) / (2 * heads))
        for layer, of_layer in enumerate(tokens.at)
        for step in range(len(of_layer))
    ]
    assert len(taken) == wanted.model.layers * (OUTPUT - 1)
    assert float(np.mean(taken)) == pytest.approx(found["attended_tokens"], rel=1e-9)
    assert found["agreement_share"] < 1 and found["attention_mass"] < 0.95 and 0 < found["recall_share"] < 1


def test_hits_and_mass_by_hand() -> None:
    """Two KV heads that choose together, blocks of two tokens: block 0 and the newest token, of five before it."""
    tokens = AttendedTokens.__new__(AttendedTokens)
    tokens._heads, tokens._rows, tokens._group, tokens._members, tokens.at = 1, 1, 2, None, [[]]
    tokens.attended(Attended(0, None, None, 1, ids=np.array([[0]])), before=5, kept=1)
    mass = torch.tensor([[[0.4, 0.1, 0.2, 0.0, 0.2, 0.1]], [[0.3, 0.4, 0.1, 0.2, 0.0, 1.0]]])
    hits, held = tokens.hits_and_mass(0, 0, mass)
    # Of four stored tokens the first head wants 0 and 2, the second 1 and 0; both are given 0, 1, 4 and 5.
    assert hits == [pytest.approx((0.5 + 1.0) / 2)]
    assert held == [pytest.approx((0.8 / 1.0 + 1.7 / 2.0) / 2)]
    # Every token: all of the stored ones, and what is in memory.
    tokens.attended(Attended(0, None, None, 1), before=5, kept=1)
    assert tokens.hits_and_mass(0, 0, mass.expand(2, 2, 6)) == ([pytest.approx(0.75), 1.0], [pytest.approx(0.825), 1.0])


@pytest.mark.parametrize("task", ["needle", "copy"])
def test_questions_are_answered_by_what_is_attended_to(text: Path, task: str) -> None:
    settings = (f"live.task={task}", "workload.context=512", "workload.output=40")
    full, few = (
        metrics(of_text(text, system, *settings, *policies))
        for system, policies in (("flexgen", ()), ("infinigen", ("policies={selected_tokens: 8}",)))
    )
    assert full["right_share"] == full["full_attention_right_share"] == few["full_attention_right_share"]
    assert full["right_share"] > 0.9
    assert few["right_share"] < full["right_share"]
    assert "perplexity" not in full


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["live.task=needle", "live.quality=false"], "live.task: needle is said where quality is measured"),
        (
            ["live.task=needle", "workload.context=512", "workload.output=9"],
            "workload.output: 9 tokens; questions with answers take",
        ),
        (
            ["live.task=copy", "workload.context=512", "workload.output=999"],
            "workload.output: 999 tokens; questions with answers take",
        ),
        (["live.task=needle", "workload.context=64"], "facts of .* do not fit into 64"),
    ],
)
def test_tasks_that_cannot_be_are_refused(text: Path, settings: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run_scenario(of_text(text, "flexgen", *settings))


def test_questions_need_words(weights: Path) -> None:
    with pytest.raises(InputError, match=r"live\.task: .*no tokenizer"):
        run_scenario(drawn(weights, "flexgen", live={"weights": str(weights), "quality": True, "task": "needle"}))


def test_a_selector_of_ones_own_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use(written(RANDOM))
    selector = {"name": "random", "selected_tokens": 32}
    policies = {"selector": selector, "group_tokens": 4, "compression": None, "selected_tokens": None}
    found = metrics(tiny(LIVE_DECODING, system="quest", policies=policies, live={"quality": True}))
    assert 0 < found["recall_share"] < 0.6 and 0 < found["attention_mass"] < 1


def test_what_an_index_learns_from_is_said_nowhere(text: Path) -> None:
    """By hand: 3 contexts of 100 tokens end at 300, or at 330 with what is said; in a study, 128 lie between them."""
    prompts = Prompts(Path(load_model("byte-small", "float32").config.name_or_path), 260, text, 0)
    ids = prompts.tokens(0, 2000, 0)[0]
    for given, begin in (((3, 100), 300), ((3, 100, 30), 400), ((3, 100, 30, 228), 600)):
        assert tuple(sample_of(prompts, *given)[0].tolist()) == ids[begin : begin + 100]
