"""Devices whose prompts a cloud helps with (P/D-Device): what is asked, budget and live settings."""

import math
from typing import Literal

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Part
from kvferry.specs.budget import Budget
from kvferry.specs.link import LinkSpec
from kvferry.specs.live import RealRun
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import Bytes, Count, Hertz, Requests, Seconds, Tokens
from kvferry.specs.workload import MOST_TOKENS_PER_RUN

# Devices of a run, and requests of all of them together.
MOST_DEVICES = 100_000
# Cells that they are in.
MOST_CELLS = 10_000
MOST_ASSISTED = 1_000_000
# Answer tokens of all requests together: a cloud that decodes them all takes a minute for this many.
_MOST_TOKENS = 100 * MOST_TOKENS_PER_RUN
# Tokens of a prompt, and of an answer.
MOST_ASSISTED_TOKENS = 1_000_000


class DeviceArrivalsSpec(Part):
    """Requests that each device's user has, at random times: a Poisson process; or one whose rate changes for all
    devices together between bursts and calm, each of exponential length."""

    # Of one device, in the mean.
    rate_hz: Hertz
    # The rate in a burst over that in calm. 1: a Poisson process.
    burstiness: float = Field(default=1.0, ge=1, le=1000, strict=True)
    # Mean length of a burst.
    burst_s: Seconds = Field(default=60.0, gt=0)
    # Mean length of the calm between two bursts.
    calm_s: Seconds = Field(default=300.0, gt=0)


class HandlingSpec(Part):
    """What software on either side takes for a request, beside prefill and decoding (P/D-Device 4.3)."""

    # On the device, before anything leaves it: authorisation, and taking out what is private.
    prepare_s: Seconds = 0.02
    # In the cloud: load balancer, gateway, batching, logs.
    forward_s: Seconds = 0.005
    # In the cloud, per token of the prompt: choosing what is kept, and packing the mask.
    refine_token_s: Seconds = 20e-6
    # On the device, per token of the prompt: unpacking the mask, and the refined prompt through its own tokenizer.
    unpack_token_s: Seconds = 3e-6
    # What a token of the prompt weighs.
    prompt_token_bytes: Bytes = 4.0
    # What a token of the answer weighs, with its frame in an event stream.
    answer_token_bytes: Bytes = 60.0
    # The fixed part of the cloud's first response.
    response_bytes: Bytes = 200.0


class NetworkSpec(Part):
    """A way to the network that a share of the devices has: a class of round trips, say, or another trace."""

    # Of the devices.
    share: float = Field(gt=0, le=1, strict=True)
    # Theirs, in place of the scenario's.
    link: LinkSpec


class ChurnSpec(Part):
    """Devices that come and go: each is online and offline in turn, for times that are exponential about these means.
    One that goes offline hangs up, and goes on by itself."""

    # For how long it is online, in the mean.
    online_s: Seconds = Field(ge=1)
    # For how long it is offline, in the mean.
    offline_s: Seconds = Field(ge=1)


class CloudFaultSpec(Part):
    """What goes wrong in the cloud with every request, to see what devices make of it."""

    # It never answers; it is gone, or falls silent, behind some tokens; its mask is damaged, or another prompt's; its
    # tokens are of another tokenizer.
    what: Literal["unreachable", "dies", "stalls", "damaged-mask", "other-mask", "other-tokenizer"]
    # Tokens that come before it dies or stalls, the first included.
    tokens: Tokens = Field(default=1, ge=1, le=1_000_000)


class AssistSpec(Part):
    """Requests of many devices. All sizes in tokens."""

    # Prompts of devices that a cloud helps.
    kind: Literal["assist"]
    # Of a prompt: a fixed beginning, content that may be refined, and a question at its end.
    prompt: Tokens = Field(ge=2, le=MOST_ASSISTED_TOKENS)
    # Of its beginning, which is never left out.
    beginning: Tokens = Field(default=0, ge=0, le=1_000_000)
    # Of its question, which is never left out.
    question: Tokens = Field(default=0, ge=0, le=1_000_000)
    # Answered.
    output: Tokens = Field(default=200, ge=1, le=MOST_ASSISTED_TOKENS)
    # Standard deviation of the logarithm of prompt and output, which are then the medians.
    spread: float = Field(default=0.0, ge=0, le=1, strict=True)
    # Users with a device each; all devices are the scenario's.
    devices: Count = Field(default=1, ge=1, le=MOST_DEVICES)
    # None: each device has one request at the start, or those of `requests` are shared among them.
    arrivals: DeviceArrivalsSpec | None = None
    # For how long requests come; the ones that have come are served to their end.
    duration_s: Seconds | None = Field(default=None, gt=0)
    # How many come in all. None: as `duration` says, or one for each device.
    requests: Requests | None = Field(default=None, ge=1, le=MOST_ASSISTED)
    # A file of recorded requests: their arrivals and lengths replace those above.
    trace: str | None = Field(default=None, min_length=1, max_length=1000)
    # What prompts are about: each scene has a LoRA of its own.
    scenes: Count = Field(default=1, ge=1, le=1000)
    # The size of a LoRA.
    lora_bytes: Bytes = 0.0
    # xi: with less of a prompt, quality suffers (Eq. 5).
    least_ratio: float = Field(default=0.25, gt=0, le=1, strict=True)
    # tau: the longest time per token that users tolerate (Eq. 6).
    tolerable_tpot_s: Seconds = Field(default=0.1, gt=0)
    # Further devices than the first are each on one of these, by chance. None: all on the scenario's link.
    networks: tuple[NetworkSpec, ...] | None = Field(default=None, min_length=1, max_length=16)
    # Cells that devices are dealt to in turn, the first to the first: the link is then the air of a cell, which its
    # devices share, and each cell draws all that is random from streams of its own. None: each device has the link.
    cells: Count | None = Field(default=None, ge=1, le=MOST_CELLS)
    # The number of the first cell: runs of parts of many cells, each with a cloud of its own, draw what one run of all
    # would.
    first_cell: Count = Field(default=0, ge=0, le=MOST_CELLS)
    # Devices that come and go. None: all are online all the time.
    churn: ChurnSpec | None = None
    # Whether prompts may leave the device. None: in a modelled world.
    privacy: Literal["may-leave", "stays"] | None = None
    # Whether the device's model is in memory when a request comes. False: it is loaded from storage each time.
    resident: bool = Field(default=False, strict=True)
    # What software takes on either side, and what messages weigh.
    handling: HandlingSpec = HandlingSpec()
    # None: nothing goes wrong.
    fault: CloudFaultSpec | None = None

    @property
    def context(self) -> int:
        """What other kinds of workload call a prompt."""
        return self.prompt

    @property
    def longest_tokens(self) -> int | None:
        """Tokens of the longest sequence; None: only a run will know."""
        return None if self.spread or self.trace is not None else self.prompt + self.output

    @property
    def fixed(self) -> int:
        """Tokens of a prompt that are never left out."""
        return self.beginning + self.question

    def cell_of(self, device: int) -> int:
        """Returns the cell of a device; the same for all where there are none."""
        return 0 if self.cells is None else self.first_cell + device % self.cells

    @model_validator(mode="after")
    def _cells_fit(self) -> "AssistSpec":
        if self.cells is None:
            if self.first_cell:
                raise BadKey("first_cell", "needs cells, of which it numbers the first; say how many (cells: 4)")
            return self
        if self.cells > self.devices:
            what = f"{self.cells:,} are more than the {self.devices:,} devices; each cell needs one (workload.devices)"
            raise BadKey("cells", what)
        for key in ("networks", "trace"):
            if getattr(self, key) is not None:
                why = {
                    "networks": "give devices links of their own, which cells share; set one of the two to null",
                    "trace": "holds requests of no cell; set cells or trace to null",
                }
                raise BadKey(key, why[key])
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> "AssistSpec":
        if self.fixed >= self.prompt:
            what = f"{self.fixed:,} with the question leave nothing of {self.prompt:,} tokens to refine"
            raise BadKey("beginning", what)
        if self.networks is not None and not math.isclose(sum(one.share for one in self.networks), 1, abs_tol=1e-6):
            raise BadKey("networks", f"have shares that sum to {sum(one.share for one in self.networks):g}, not 1")
        if self.trace is not None:
            for key in ("arrivals", "spread"):
                if getattr(self, key):
                    raise BadKey(key, "trace holds the requests' arrivals and lengths; leave one of the two out")
        if self.duration_s is not None and self.arrivals is None:
            raise BadKey("duration", "needs arrivals, which come for so long (arrivals: {rate: 6 requests/hour})")
        if self.duration_s is not None and self.requests is not None:
            raise BadKey("requests", "stands beside duration; keep one of them and set the other to null")
        return self

    @property
    def expected_requests(self) -> float:
        if self.requests is not None:
            return self.requests
        if self.arrivals is not None and self.duration_s is not None:
            return self.devices * self.arrivals.rate_hz * self.duration_s
        return self.devices

    def check_size(self, model: ModelSpec, *, per_head: bool) -> None:
        """Raises BadKey for more requests, or tokens of answers, than a run may have."""
        requests = self.expected_requests
        if requests > MOST_ASSISTED:
            key = "workload.devices" if self.requests is None else "workload.requests"
            raise BadKey(key, f"make {requests:,.0f} requests; at most {MOST_ASSISTED:,} will do")
        if requests * self.output > _MOST_TOKENS:
            raise BadKey("workload.output", f"makes {requests * self.output:,.0f} tokens; {_MOST_TOKENS:,} will do")


class AssistBudget(Budget):
    """The budget of a device that is helped."""

    # Of the workload; a file need not say it again.
    kind: Literal["assist"] = Field(default="assist", exclude=True)


class AssistLive(RealRun):
    """A device and a cloud, each with a real model."""

    kind: Literal["assist"] = Field(default="assist", exclude=True)
    # A running `kvferry serve-cloud` whose real link is used; `beside`: the run starts one, and replays `link` between
    # the two; `within`: the cloud shares the device's process, and `link` is replayed.
    cloud: str = Field(default="within", pattern=r"^(beside|within|https?://[^\s]+)$", max_length=1000)

    @property
    def further_machines(self) -> str:
        return self.cloud
