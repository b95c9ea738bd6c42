"""The real model of a scenario with the prompts that it reads, warmed up."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from kvferry.model.prompts import Prompts
from kvferry.model.scenario_model import model_of
from kvferry.specs.scenario import Scenario


def warm_model(scenario: Scenario) -> tuple[PreTrainedModel, Prompts]:
    """Raises InputError for a model that is not there or not the scenario's, and a text that cannot be read."""
    live = scenario.live
    torch.set_num_threads(live.threads)
    model, folder = model_of(scenario)
    prompts = Prompts(folder, scenario.model.vocabulary, None if live.text is None else Path(live.text), scenario.seed)
    # First times are slow: kernels are chosen. None of it belongs to a run.
    with torch.no_grad():
        for _ in range(2):
            model(torch.zeros((1, 16), dtype=torch.long, device=model.device), logits_to_keep=1)
    return model, prompts
