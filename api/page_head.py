"""The head of the pages that need no network, with their colours."""

from html import escape
from importlib.resources import files
from string import Template


def page_head(title: str, sources: str) -> str:
    """Returns what stands up to a page's own styles; `sources`: what its security policy lets it load."""
    text = (files("kvferry.api") / "page_head.html").read_text(encoding="utf-8")
    return Template(text).substitute(title=escape(title), sources=sources)
