"""An answer as one HTML file that needs no network and no other file."""

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from shlex import quote
from string import Template

from kvferry.advice.answer import Answer
from kvferry.advice.composition import KV_BITS
from kvferry.advice.study import rule_of
from kvferry.advice.trial import TOGETHER
from kvferry.api.page_head import page_head
from kvferry.specs.version import VERSION

# The question that each picture answers, by its file's name.
QUESTIONS = {
    "ttft": "How long until the first token?",
    "rate": "How fast afterwards?",
    "memory": "How much memory?",
    "map-link": "Which system wins, by context and link?",
    "map-memory": "Which system wins, by context and memory?",
}


def page(found: Answer, pictures: Mapping[str, Path]) -> str:
    """Returns the page; `pictures`: PNG files by name."""
    question = found.question
    text = (files("kvferry.advice") / "page.html").read_text(encoding="utf-8")
    best = found.best.composition
    rule = f"<p>{escape(rule_of(question, best.loss == 'coarser' and best.kv_bits < KV_BITS[0]))}</p>"
    title = f"{question.use.spec.name} on {question.device.name}: {found.best.composition.name}"
    return Template(text).substitute(
        head=page_head(title, "style-src 'unsafe-inline'; img-src data:"),
        title=escape(title),
        about=escape(f"{question.about}; {found.how_many}"),
        statements="\n".join(f"<h2>{escape(one.title)}</h2>\n<ul>{_items(one.lines)}</ul>" for one in found.statements),
        pictures="\n".join(
            f'<h2>{escape(QUESTIONS[name])}</h2>\n<img alt="{escape(QUESTIONS[name])}"'
            f' src="data:image/png;base64,{b64encode(file.read_bytes()).decode()}">'
            f"{rule if name.startswith('map-') else ''}"
            for name, file in pictures.items()
        ),
        energy=_energy_of_run(found),
        assumes=_items(question.use.spec.assumes),
        version=VERSION,
    )


def _energy_of_run(found: Answer) -> str:
    """How a run has the energy of an answer that is said here, which leaves out the time between two turns."""
    if found.best.composition.helped is not None or "energy_j" not in found.best.figures:
        return ""
    words = " ".join(f"--set {quote(f'{key}={value}')}" for key, value in TOGETHER.items())
    said = "Its energy has the idle time between two turns in it; energy/answer as above, without it"
    return f"<p>{said}: kvferry run scenario.yaml {escape(words)}</p>"


def _items(lines: tuple[str, ...]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)
