"""The sizes of one run that decodes with KV blocks, where its KV lies, and the stages of its steps."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from kvferry.layouts.cluster_layout import AnyLayout
from kvferry.layouts.plan_file import PlanFile
from kvferry.policies.decode.kv_memory import KvMemory, Managed
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.sizes import Choice, KeySizes, Known, StayingSizes
from kvferry.policies.decode.spans import Spans
from kvferry.policies.decode.stages import Stages
from kvferry.specs.model import ModelSpec
from kvferry.specs.tier import Tier


@dataclass(frozen=True, kw_only=True)
class DecodePlan:
    """The sizes of one run, per sequence unless said otherwise: a DecodeSizes for the worlds. ``known``: what is there
    before prefill; None: nothing."""

    roles: Roles
    model: ModelSpec
    sequences: int
    context: int
    output: int
    choice: Choice
    keys: KeySizes
    staying: StayingSizes
    managed: Managed = field(compare=False)
    layout: AnyLayout = field(compare=False)
    known: Known | None = None

    @property
    def most_tokens(self) -> int:
        """Returns the tokens of a sequence at its end."""
        return self.context + self.output

    @property
    def known_tokens(self) -> int:
        """Returns the tokens of the context whose KV is there before prefill."""
        return 0 if self.known is None else self.known.tokens

    def blocks_of(self, tokens: Spans) -> list[tuple[int, int]]:
        """Returns ranges of the whole KV blocks of some tokens of the context."""
        return tokens.blocks(self.choice.group_tokens, self.choice.blocks)

    @property
    def rows(self) -> int:
        """Returns the number of rows of one layer over the whole batch."""
        return self.sequences * self.choice.heads

    @property
    def token_bytes(self) -> int:
        """Returns the bytes of a token's entry in one row of a layer."""
        return self.model.kv_entry_bytes // self.choice.heads

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of the context's KV blocks in one row of one layer, as they lie outside the processor's
        memory."""
        return self.choice.blocks * self.layout.stride_bytes

    @property
    def blocks_per_selection(self) -> int:
        """Returns the blocks that one sequence selects in one layer, over all heads."""
        selected = self.choice.selected
        return self.choice.heads * (self.choice.blocks if selected is None else selected)

    @property
    def brought_tokens(self) -> int:
        """Returns the tokens of the context that attention takes in, in each row."""
        selected = self.choice.selected
        return self.context if selected is None else selected * self.choice.group_tokens

    @property
    def writes_back(self) -> bool:
        """Returns what ``Roles.writes_back`` says."""
        return self.roles.writes_back

    @cached_property
    def memory(self) -> KvMemory:
        """Returns what it holds of the machine's memories, and where its KV lies."""
        return KvMemory(
            roles=self.roles,
            model=self.model,
            sequences=self.sequences,
            context=self.context,
            output=self.output,
            choice=self.choice,
            newest_tokens=self.staying.newest_tokens,
            managed=self.managed,
        )

    @cached_property
    def file(self) -> PlanFile:
        """Returns the parts of the storage file behind the KV."""
        return PlanFile(
            kv_bytes=self.layout.file_bytes,
            layers=self.model.layers,
            rows=self.rows,
            blocks=self.layout.blocks,
            vector_bytes=self.keys.vector_bytes,
            alignment_bytes=self.layout.alignment_bytes,
            with_index=self.roles.residency.index_on_storage,
        )

    @property
    def file_bytes(self) -> int:
        """Returns the bytes of the storage file."""
        return self.file.n_bytes

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Returns where each layer's KV lies after prefill."""
        return self.memory.tiers_at(self.context)

    @property
    def last_tiers(self) -> tuple[Tier, ...]:
        """Returns where each layer's KV lies once all is decoded."""
        return self.memory.tiers_at(self.most_tokens)

    @cached_property
    def stages(self) -> Stages:
        """Returns one decoding step."""
        return self.roles.step(self.model.layers)

    def within(self, budget_bytes: float) -> "DecodePlan":
        """Returns the plan with another budget for each sequence, and as many new tokens in memory as that has room
        for."""
        found = self.memory.within(budget_bytes)
        return replace(self, managed=found.managed, staying=replace(self.staying, newest_tokens=found.newest_tokens))

    def together(self, sequences: int) -> "DecodePlan":
        """Returns the plan for another number of sequences."""
        return replace(self, sequences=sequences, layout=replace(self.layout, sequences=sequences))
