"""The pace at which a device shows tokens from the cloud (P/D-Device, Eq. 4)."""

from kvferry.cloud.messages import mask_apart
from kvferry.cloud.story import Story
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.estimates import Estimates
from kvferry.policies.assist.help import Help
from kvferry.specs.assist import AssistSpec

# Times that add up to the same are the same up to this share.
_ROUNDING = 1e-9


class Pace:
    """Of an answer, as its device reckons it, by what it expects of itself and hears from the cloud."""

    def __init__(self, workload: AssistSpec, estimates: Estimates, wanted: Help, story: Story, answer: Answer) -> None:
        self._workload, self._estimates, self._help = workload, estimates, wanted
        self._story, self._answer = story, answer

    def least_s(self, refined: int, rest: int, beginning: int) -> float | None:
        """What the pace of tokens from the cloud will be at least, before anything is measured; None where there is
        nothing to pace."""
        if self._story.tokens < 2:
            return None
        causal = rest and self._help.smoothing == "causal"
        unpack_s = self._workload.handling.unpack_token_s * self._story.prompt
        amortised_s = self.expected_s(self.mask_s + unpack_s, rest, beginning) if causal else 0.0
        return self._covering_s(refined, amortised_s)

    def expected_s(self, ready_s: float, rest: int, before: int) -> float:
        """When the device's own first token is expected, where it can prefill the rest of a prompt from `ready_s`."""
        return ready_s + self._estimates.prefill_s(rest, self._story.behind.here + before)

    def show(self, refined: int, expected_s: float, cloud_tpot_s: float) -> None:
        """Shows tokens at the pace of Eq. 4, where the device expects its own first token at `expected_s`, and never
        faster than the cloud promises them, as far as users tolerate its promise or it could keep no other; as they
        come, where all are to come from the cloud. The paper lets prefill begin when the request is sent."""
        story = self._story
        if min(story.tokens, story.planned) >= 2:
            assert story.first_s is not None and story.asked_s is not None
            if self._help.smoothing == "paper":
                amortised_s = self._estimates.prefill_s(refined) - (story.first_s - story.asked_s)
            else:
                amortised_s = expected_s - story.first_s
            kept_s = self._estimates.kept_s(story.behind.here + story.prompt + story.tokens)
            tolerated_s = min(cloud_tpot_s, max(kept_s, self._workload.tolerable_tpot_s))
            story.pace_s = max(self._covering_s(refined, amortised_s), tolerated_s)
        self._answer.paced(story.pace_s or 0.0)

    def show_before_mask(
        self, now_s: float, ready_s: float, refined: int, beginning: int, least_s: float | None, cloud_tpot_s: float
    ) -> None:
        """The same before the mask is there, no faster than the cloud was asked for. `ready_s`: when the device has
        prefilled the prompt's beginning."""
        unpacked_s = now_s + self.mask_s + self._workload.handling.unpack_token_s * self._story.prompt
        expected_s = self.expected_s(max(ready_s, unpacked_s), refined - beginning, beginning)
        self.show(refined, expected_s, cloud_tpot_s)
        if self._story.pace_s is not None and least_s is not None and self._story.pace_s < least_s:
            self._story.pace_s = least_s
            self._answer.paced(least_s)

    def keep(self, now_s: float, refined: int, expected_s: float) -> None:
        """Has what is left of the cloud's tokens cover a first token of the device's own that is later than promised,
        as it has learnt."""
        story, answer = self._story, self._answer
        if story.pace_s is None or self._help.smoothing == "paper":
            return
        if (place := answer.due_behind(now_s)) >= story.planned:
            return
        # By then the device would have decoded through those before.
        own_s = self._own_tpot_s(refined) * (place - 1) if self._help.catch_up == "decode" else 0.0
        pace_s = self._covering_s(refined, expected_s + own_s - answer.due_s(place - 1), place)
        if pace_s > story.pace_s * (1 + _ROUNDING):
            answer.put_off(place, pace_s)

    @property
    def mask_s(self) -> float:
        """How much later than the first token the mask is expected."""
        prompt, ratio = self._story.prompt, self._story.ratio
        return self._estimates.mask_s(prompt, ratio) if mask_apart(self._help, ratio) else 0.0

    def _covering_s(self, refined: int, amortised_s: float, place: int = 1) -> float:
        """The pace at which as many tokens as planned, those from this place on, cover this wait (Assistance.covering),
        no faster than the device's own."""
        own_s, wait_s, tokens = self._own_tpot_s(refined), max(0.0, amortised_s), self._story.planned - place
        if self._help.catch_up == "decode":
            return own_s + wait_s / tokens
        catch_up_s = self._estimates.prefill_s(self._story.planned - 1, self._story.behind.here + refined)
        return max(own_s, (wait_s + catch_up_s + own_s) / (tokens + 1))

    def _own_tpot_s(self, refined: int) -> float:
        return self._estimates.tpot_s(self._story.behind.here + refined + self._story.output / 2)
