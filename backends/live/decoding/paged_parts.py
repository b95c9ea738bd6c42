"""What decoding with all KV in memory needs of a real world: a real model, and pages for its KV."""

from contextlib import ExitStack
from typing import Any

from kvferry.backends.live.decoding.kept_file import check_kept
from kvferry.backends.live.decoding.paged_layers import PagedLayers
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.needs import KvInPages
from kvferry.backends.world import Say
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario


class PagedParts(MachineParts):
    """A runner of prompts whose KV is in pages of memory."""

    runner: PagedLayers

    def __init__(self, scenario: Scenario, need: KvInPages, say: Say, stack: ExitStack) -> None:
        if scenario.load is not None:
            raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
        if need.evicts:
            what = f"{scenario.system} gives up KV for good, which backend torch does not do"
            raise InputError(f"system: {what}; backend: sim would")
        check_kept(scenario, None)
        self.model, prompts = warm_model(scenario)
        of_requests = [prompts.tokens(n, context, 0)[0] for n, context in enumerate(need.prompts)]
        self.runner = PagedLayers(self.model, of_requests, output=need.output, pages=need.pages)

    def measured(self) -> dict[str, Any]:
        runner = self.runner
        return {
            "answers": {str(sequence): answer for sequence, answer in enumerate(runner.answers)},
            "kv_metadata_bytes": runner.metadata_bytes,
            "kv_buffer_bytes": runner.buffer_bytes,
        }
