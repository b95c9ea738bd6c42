"""An op: what a processor can be asked to do, and what every kind of op has in common."""

from typing import Any, ClassVar, Literal

from kvferry.machine.answers import Answer

# What an op is for: computing a context, a prompt or tokens as a whole, or a part of a decode step.
Purpose = Literal[
    "computed",
    "prefill",
    "tokens",
    "choosing KV",
    "updating clusters",
    "attention",
    "feed-forward and projections",
]
# A number, or an array of them when a cost model is asked for many ops at once.
Number = Any

# Every op by its label, in the order in which machine/ops.py has them.
OPS: dict[str, type["Op"]] = {}


class Op:
    """What all ops have in common.

    ``label``: what its spans are called, the op's own name. ``answer``: what the processor answers with, where a
    modelled machine takes that from a stream; None: nothing. ``of_block``: belongs to a Transformer block while
    decoding. ``ends_layer``: it is the last op of its layer there. ``purpose``: as what pictures show its
    spans; None: under its own name.
    """

    __slots__ = ()

    label: ClassVar[str]
    answer: ClassVar[type[Answer] | None] = None
    of_block: ClassVar[bool] = False
    ends_layer: ClassVar[bool] = False
    purpose: ClassVar[Purpose | None] = None

    def __init_subclass__(cls) -> None:
        # A dataclass with slots is made again from the class as it is written: the last one counts.
        cls.label = cls.__name__
        OPS[cls.label] = cls
