"""How a scenario is made real: what `backend: torch` needs beyond the description of the world, by kind of workload."""

from typing import Any, Literal

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Part
from kvferry.specs.units import Count


class RealModel(Part):
    """The real model of a machine and what it reads. The modelled world has no use for it."""

    # A folder with a model, a name on the hub (in the local cache), or `random`: weights drawn from the scenario's
    # seed. None: the model of that name that comes with the project.
    weights: str | None = Field(default=None, min_length=1, max_length=1000)
    # What kind of model random weights make.
    family: Literal[
        "deepseek_v3",
        "gemma3_text",
        "granite",
        "llama",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    ] = "qwen3"
    # None: as stored; random weights as wide as the model's `kv_value_bytes` says.
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    # The torch device that the model lies on.
    processor: str = Field(default="cpu", pattern=r"^[a-z]+(:[0-9]+)?$")
    # A text file for the contexts. None: the sources of Python's standard library.
    text: str | None = Field(default=None, min_length=1, max_length=1000)


class RealRun(RealModel):
    """The device's real model, and what all machines of the process share."""

    # CPU threads that an op runs on; decompression has workers of its own beside them.
    threads: Count = Field(default=1, ge=1, le=1024)

    @property
    def further_machines(self) -> str:
        """Where the scenario's further machines run: "within" the process of the device, "beside" it in one of their
        own, or in one at a URL."""
        return "within"


class ContextReuseLive(RealRun):
    """Contexts are loaded from a real cloud."""

    # Of the workload; a file need not say it again.
    kind: Literal["context-reuse"] = Field(default="context-reuse", exclude=True)
    # Of the real model: dense, or FlexAttention over masks recorded from real attention when the context is
    # made.
    attention: Literal["dense", "block-sparse"] = "dense"
    # A running `kvferry serve` whose real link is used. None: a server beside the run replays `link`.
    cloud: str | None = Field(default=None, pattern=r"^https?://[^\s]+$", max_length=1000)


class DecodeLive(RealRun):
    """A batch decodes with its KV in a real file."""

    kind: Literal["decode"] = Field(default="decode", exclude=True)
    # The folder for the file with the KV, on the device that is to be used. None: the system's folder for temporary
    # files.
    kv_folder: str | None = Field(default=None, min_length=1, max_length=1000)
    # The file with the KV, which stays there with a log beside it, FILE.log: it can be read up to the last finished
    # step, however the run ends. None: it has no name, no log, and goes with the run.
    kv_file: str | None = Field(default=None, min_length=1, max_length=1000)
    # The file is read and written as slowly as `device.storage` says; false: as fast as it is.
    paced: bool = Field(default=True, strict=True)
    # The batch says what `task` has, and full attention over the same tokens is computed once it is done: how often
    # both want the same next token, and what else a system's choice costs.
    quality: bool = Field(default=False, strict=True)
    # With `quality`, what is said: the text's own continuation, needles in it that are asked for, or lines of random
    # letters in it that are said again.
    task: Literal["text", "needle", "copy"] = "text"
    # A file for what was selected, sequence after sequence, which workload.selections can replay.
    record_selections: str | None = Field(default=None, min_length=1, max_length=1000)
    # A file for the keys and queries of the first sequence.
    record_keys: str | None = Field(default=None, min_length=1, max_length=1000)

    @model_validator(mode="before")
    @classmethod
    def _scores_are_a_policy(cls, value: Any) -> Any:
        if isinstance(value, dict) and "scores" in value:
            raise BadKey("scores", "is a policy now: say policies.scores, which is summed, by_head or best_head")
        return value

    @model_validator(mode="after")
    def _a_task_is_measured(self) -> "DecodeLive":
        if self.task != "text" and not self.quality:
            raise BadKey("task", f"{self.task} is said where quality is measured; with quality: true it would be")
        return self
