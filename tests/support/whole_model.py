"""What a whole model says of the turns of a session, to compare with what was said of KV from anywhere."""

from kvferry.specs.scenario import Scenario
from kvferry.traces.turns import turns_of

Answers = dict[str, list[int]]


def by_transformers(scenario: Scenario, answers: Answers) -> Answers:
    """What the whole model says of each turn's prompt, behind what was answered before: one forward pass, no KV."""
    import torch

    from kvferry.backends.live.turns.texts import Texts
    from kvferry.model.prompts import Prompts
    from kvferry.model.scenario_model import model_of

    model, folder = model_of(scenario)
    turns = turns_of(scenario.session.workload, scenario.seed)
    texts = Texts(turns, Prompts(folder, scenario.model.vocabulary, None, scenario.seed))
    said = {int(turn): answer for turn, answer in answers.items()}
    found: Answers = {}
    for number, turn in enumerate(turns.numbered):
        prompt = texts.prompt(number, said)
        assert len(prompt) == turn.prompt
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *said[number]]])).logits[0]
        found[str(number)] = logits[turn.prompt - 1 : -1].argmax(-1).tolist()
    return found
