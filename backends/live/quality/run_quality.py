"""The quality of a run's decoding: what it said and attended to, beside full attention over the same tokens."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.cluster_format import ClusterFormat
from kvferry.backends.live.quality.attended_tokens import AttendedTokens
from kvferry.backends.live.quality.full_attention import layer_by_layer
from kvferry.backends.live.quality.measured import Figures, Measured
from kvferry.backends.live.quality.tasks import ASKING, Task
from kvferry.model.decoders import decoder_of
from kvferry.model.prompts import Prompts
from kvferry.specs.errors import InputError
from kvferry.specs.live import DecodeLive
from kvferry.specs.scenario import Scenario


class RunQuality:
    """Says what a batch is made to say, ``follow``, and hears its logits; ``figures`` then compares them.

    None is made to say anything where there is no text: what a model says by itself is judged.
    """

    def __init__(self, live: DecodeLive, prompts: Prompts, contexts: Sequence[int], output: int) -> None:
        self._readable = prompts.by is not None
        self.tasks: list[Task] = []
        for n, context in enumerate(contexts):
            if live.task == "text":
                # The contexts of a run that is not measured, one where the one before ends.
                ids = prompts.tokens(n, context + output, 0, context)[0] if self._readable else ()
                own = ids[:context] or prompts.tokens(n, context, 0)[0]
                self.tasks.append(Task(list(own), list(ids[context:])))
            else:
                self.tasks.append(_within(ASKING[live.task](prompts, n, context), output))
        self._logits: list[list[torch.Tensor]] = [[] for _ in contexts]
        # None: all tokens are attended to.
        self._attended: AttendedTokens | None = None

    @property
    def contexts(self) -> list[list[int]]:
        return [task.context for task in self.tasks]

    @property
    def read_on(self) -> int:
        """Returns how many tokens are said that stand behind the contexts in their text."""
        return max((len(task.said) for task in self.tasks if not task.answers), default=0)

    @property
    def follow(self) -> list[list[int]] | None:
        return [task.said for task in self.tasks] if self._readable else None

    def attending(self, format: BlockFormat | ClusterFormat) -> AttendedTokens:
        """Returns what notes the tokens that are attended to, where not all may be."""
        self._attended = AttendedTokens(format, context=len(self.tasks[0].context))
        return self._attended

    def listen(self, logits: torch.Tensor, sequences: Sequence[int]) -> None:
        """Takes note of the logits [sequences, vocabulary] of the next token of each of these sequences."""
        for sequence, own in zip(sequences, logits.cpu(), strict=True):
            self._logits[sequence].append(own)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def figures(self, model: PreTrainedModel, said: Sequence[list[int]]) -> Figures:
        """Returns metrics by key, of all tokens but first ones, which prefill says; none where only those were said."""
        found = Measured()
        for n, (task, of_sequence, heard) in enumerate(zip(self.tasks, said, self._logits, strict=True)):
            if len(of_sequence) > 1:
                own = torch.stack(heard)[1:].float().log_softmax(-1)
                full = self._full(model, n, task.context + of_sequence, len(task.context), found)
                found.add_steps(task, own, full)
        return found.figures()

    def _full(
        self, model: PreTrainedModel, sequence: int, ids: list[int], context: int, found: Measured
    ) -> torch.Tensor:
        """Returns full attention's log probabilities of the same tokens; `found` gets what of it was attended to."""
        decoder, hidden = decoder_of(model), torch.empty(0)
        for layer, (made, mass) in enumerate(layer_by_layer(decoder, ids, range(context, len(ids) - 1))):
            hidden = made.hidden
            if self._attended is not None:
                found.add_attended(*self._attended.hits_and_mass(layer, sequence, mass))
        return decoder.logits(hidden[0, context:-1]).float().log_softmax(-1).cpu()


def quality_of(scenario: Scenario, prompts: Prompts, contexts: Sequence[int], output: int) -> RunQuality | None:
    """Returns what measures a run's quality, if the scenario wants it."""
    live = scenario.live
    if not isinstance(live, DecodeLive) or not live.quality:
        return None
    return RunQuality(live, prompts, contexts, output)


def _within(task: Task, output: int) -> Task:
    """Returns the task with `output` tokens said. Raises InputError where that is more than it has, or no answer."""
    first, most = task.answers[0][1], len(task.said)
    if not first <= output <= most:
        raise InputError(
            f"workload.output: {output:,} tokens; questions with answers take {first:,} to {most:,} of them"
        )
    return Task(task.context, task.said[:output], task.answers)
