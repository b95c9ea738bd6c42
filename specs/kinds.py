"""The kinds of workload, in one place: what each says of workload, budget and live settings."""

from typing import Annotated, Generic, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, Field

from kvferry.specs.assist import AssistBudget, AssistLive, AssistSpec
from kvferry.specs.budget import ContextReuseBudget, DecodeBudget
from kvferry.specs.live import ContextReuseLive, DecodeLive
from kvferry.specs.session import SessionBudget, SessionLive, SessionSpec
from kvferry.specs.workload import ContextReuseSpec, DecodeSpec

Workload = TypeVar("Workload", bound=BaseModel)
OfBudget = TypeVar("OfBudget", bound=BaseModel)
Live = TypeVar("Live", bound=BaseModel)


class Parts(NamedTuple, Generic[Workload, OfBudget, Live]):
    """What only scenarios of one kind of workload say."""

    workload: Workload
    budget: OfBudget
    live: Live


ContextReuseParts = Parts[ContextReuseSpec, ContextReuseBudget, ContextReuseLive]
DecodeParts = Parts[DecodeSpec, DecodeBudget, DecodeLive]
AssistParts = Parts[AssistSpec, AssistBudget, AssistLive]
SessionParts = Parts[SessionSpec, SessionBudget, SessionLive]

WorkloadSpec = Annotated[ContextReuseSpec | DecodeSpec | AssistSpec | SessionSpec, Field(discriminator="kind")]
BudgetSpec = Annotated[ContextReuseBudget | DecodeBudget | AssistBudget | SessionBudget, Field(discriminator="kind")]
LiveSpec = Annotated[ContextReuseLive | DecodeLive | AssistLive | SessionLive, Field(discriminator="kind")]
# Parts of a scenario whose keys depend on the kind of its workload, which they need not repeat.
BY_KIND = {"budget": BudgetSpec, "live": LiveSpec}


def members(union: object) -> tuple[type[BaseModel], ...]:
    """The records of one of these unions."""
    records: tuple[type[BaseModel], ...] = get_args(get_args(union)[0])
    return records


KINDS: tuple[str, ...] = tuple(get_args(record.model_fields["kind"].annotation)[0] for record in members(WorkloadSpec))
