"""The pace at which a device shows tokens from the cloud (P/D-Device, Eq. 4)."""

from kvferry.cloud.messages import mask_apart
from kvferry.cloud.story import Story
from kvferry.pipelines.assist.estimates import Estimates
from kvferry.policies.assist.help import Help
from kvferry.specs.assist import AssistSpec

# Times that add up to the same are the same up to this share.
_ROUNDING = 1e-9


class Pace:
    """As a device reckons it, by what it expects of itself and hears from the cloud."""

    def __init__(self, workload: AssistSpec, estimates: Estimates, wanted: Help) -> None:
        self._workload, self._estimates, self._help = workload, estimates, wanted

    def least_s(self, story: Story, refined: int, rest: int, beginning: int) -> float | None:
        """What the pace of tokens from the cloud will be at least, before anything is measured; None where there is
        nothing to pace."""
        if story.tokens < 2:
            return None
        amortised_s = 0.0
        if rest and self._help.smoothing == "causal":
            unpack_s = self._workload.handling.unpack_token_s * story.prompt
            amortised_s = self.mask_s(story) + unpack_s + self._estimates.prefill_s(rest, story.behind.here + beginning)
        return self._covering_s(story, refined, amortised_s)

    def of_s(self, story: Story, refined: int, expected_s: float, cloud_tpot_s: float) -> float | None:
        """The pace at which tokens from the cloud are shown (Eq. 4), where the device expects its own first token at
        `expected_s`, and never faster than the cloud promises them, as far as users tolerate its promise or it could
        keep no other; None where there is nothing to pace. The paper lets prefill begin when the request is sent."""
        if min(story.tokens, story.planned) < 2:
            return None
        assert story.first_s is not None and story.asked_s is not None
        if self._help.smoothing == "paper":
            amortised_s = self._estimates.prefill_s(refined) - (story.first_s - story.asked_s)
        else:
            amortised_s = expected_s - story.first_s
        own_s = self._covering_s(story, refined, amortised_s)
        kept_s = self._estimates.kept_s(story.behind.here + story.prompt + story.tokens)
        return max(own_s, min(cloud_tpot_s, max(kept_s, self._workload.tolerable_tpot_s)))

    def rest_s(self, story: Story, refined: int, expected_s: float, place: int, shown_s: float) -> float | None:
        """The same for tokens from this place on, where the one before is shown at `shown_s`: the device has learnt
        that its own first token comes later than it had expected. None: as before."""
        if story.pace_s is None or self._help.smoothing == "paper" or place >= story.planned:
            return None
        # By then the device would have decoded through those before.
        own_s = self._own_tpot_s(story, refined) * (place - 1) if self._help.catch_up == "decode" else 0.0
        pace_s = self._covering_s(story, refined, expected_s + own_s - shown_s, place)
        return pace_s if pace_s > story.pace_s * (1 + _ROUNDING) else None

    def _covering_s(self, story: Story, refined: int, amortised_s: float, place: int = 1) -> float:
        """The pace at which as many tokens as planned, those from this place on, cover this wait (Assistance.covering),
        no faster than the device's own."""
        own_s, wait_s, tokens = self._own_tpot_s(story, refined), max(0.0, amortised_s), story.planned - place
        if self._help.catch_up == "decode":
            return own_s + wait_s / tokens
        catch_up_s = self._estimates.prefill_s(story.planned - 1, story.behind.here + refined)
        return max(own_s, (wait_s + catch_up_s + own_s) / (tokens + 1))

    def _own_tpot_s(self, story: Story, refined: int) -> float:
        return self._estimates.tpot_s(story.behind.here + refined + story.output / 2)

    def mask_s(self, story: Story) -> float:
        """How much later than the first token the mask is expected."""
        return self._estimates.mask_s(story.prompt, story.ratio) if mask_apart(self._help, story.ratio) else 0.0
