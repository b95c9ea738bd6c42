"""A use of a device as its file describes it."""

from typing import Literal

from pydantic import Field

from kvferry.specs.base import Spec
from kvferry.specs.session import SessionSpec

# Figures by which compositions are ranked: until an answer is complete, until its first token, between tokens, per
# answer.
Best = Literal["answer_s", "ttft_s", "tpot_s", "energy_j"]


class UseSpec(Spec):
    """The shape of a use's file."""

    name: str = Field(min_length=1, max_length=100)
    # What happens, in a line.
    about: str = Field(min_length=1, max_length=300)
    # What is not measured, for the reader of an answer.
    assumes: tuple[str, ...] = ()
    best: Best = "answer_s"
    workload: SessionSpec
