"""The device's roles: it asks, shows what comes at a steady pace, and catches up by itself (P/D-Device 3.3). Where the
cloud is gone, silent, or sends what cannot be used, it finishes the answer without it."""

from kvferry.cloud.messages import one_line, refined_tokens
from kvferry.machine.handles import Continued
from kvferry.pipelines.assist.device_request import DeviceRequest
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.help import late_s


def alone(request: DeviceRequest) -> Process:
    """Answers a request without the cloud."""
    request.own.hold(request.story.prompt + request.story.output)
    yield from request.prepared(0.0)
    yield from request.by_itself(0, request.own.load(), 0.0)
    yield from request.ended()


def through_the_cloud(request: DeviceRequest) -> Process:
    """Has the cloud answer, and shows its tokens as they come."""
    story, answer, own = request.story, request.answer, request.own
    cloud = yield from request.asked()
    said = yield from cloud.answer(request.patience.answer_s)
    if said is not None:
        request.began(said)
        answer.paced(0.0)
        cloud.tokens(answer)
        promised_s = min(said["tpot_s"], request.workload.tolerable_tpot_s)
        yield from cloud.late(late_s(request.patience.token_s, promised_s))
    if len(answer) < story.output:
        own.hold(story.prompt + story.output)
        before, ready_s = own.load(), request.machine.env.now + request.estimates.start_s
        late = None if said is not None and cloud.coming.triggered else cloud
        yield from request.by_itself(0, before, ready_s, late)
    yield from request.ended()
    yield from cloud.done()


def in_turns(request: DeviceRequest) -> Process:
    """Drafts some tokens at a time, which the cloud looks at before they are shown; both have prefilled the prompt
    (speculative decoding between edge and cloud, 2.2.1). The first token is the device's own."""
    story, answer, own, env = request.story, request.answer, request.own, request.machine.env
    most, patience_s = request.help.draft, request.patience.answer_s
    own.hold(story.prompt + story.output)
    cloud = yield from request.asked(drafts=True)
    first = yield own.prefill(story.prompt, 0, own.load())
    story.first_s = story.own_first_s = env.now
    answer.said(env.now, first)
    # It has all that it needs to go on by itself, and waits for nothing that is late.
    round_s, tolerable_s = request.estimates.round_s(most), request.workload.tolerable_tpot_s
    said = yield from cloud.answer(late_s(patience_s, round_s + tolerable_s))
    if said is not None and said["tokenizer"] != story.tokenizer:
        # Drafts are looked at token by token.
        cloud.send({"drafted": 0}, 0.0)
        named = one_line(str(said["tokenizer"]))
        story.happened = f"the cloud's tokenizer is another ({named}): it cannot look at drafts"
        said = None
    if said is not None:
        story.response_bytes = said["bytes"]
        promised_s = round_s + min(said["tpot_s"], tolerable_s)
    while said is not None and len(answer) < story.output:
        drafted, stands = min(most, story.output - len(answer)), tuple(answer.own)
        drafts = yield own.decode(drafted, story.prompt + len(answer), Continued(stands=stands))
        message = {"drafted": drafted, "before": stands, "said": drafts}
        cloud.send(message, drafted * request.workload.handling.answer_token_bytes)
        said = yield from cloud.verdict(drafted, late_s(patience_s, promised_s))
        if said is not None:
            answer.said_all(said["stands"] * [env.now], said["said"])
    if said is not None:
        cloud.send({"drafted": 0}, 0.0)
    else:
        # It may wait for drafts that never come, also where the answer is whole.
        cloud.leave()
        if len(answer) < story.output:
            yield from own.go_on(story.behind.here + story.prompt, tuple(answer.own))
    yield from request.ended()


def helped(request: DeviceRequest) -> Process:
    """Has the cloud help with this many tokens and such a part of the prompt as the story says. Prefill of the prompt's
    fixed beginning waits for no mask."""
    story, answer, own, pace, env = request.story, request.answer, request.own, request.pace, request.machine.env
    refined = refined_tokens(request.workload, story.prompt, story.ratio)
    # Without a mask to wait for, nothing of the prompt waits.
    beginning = refined if story.ratio >= 1 else request.workload.beginning
    own.hold(refined + story.output)
    least_s = pace.least_s(refined, refined - beginning, beginning)
    cloud = yield from request.asked(least_s)
    ready_s = pace.expected_s(env.now + request.estimates.start_s, beginning, 0)
    before = own.load()
    if beginning:
        before = (own.prefill(beginning, 0, before),)
    # Which of the two is there first is shown, where its own prefill is under way.
    first = before[0] if beginning == story.prompt else None
    said = yield from cloud.answer(request.patience.answer_s, first)
    if said is None:
        own.hold(story.prompt - refined)
        yield from request.by_itself(beginning, before, ready_s, cloud)
    else:
        request.began(said)
        coming = cloud.tokens(answer)
        if follows := cloud.mask_follows:
            pace.show_before_mask(env.now, ready_s, refined, beginning, least_s, said["tpot_s"])
        masked = yield from cloud.mask(request.mask_patience_s)
        if masked is not None and follows:
            story.response_bytes += masked["bytes"]
        if refined > beginning:
            expected, refined = refined, (yield from request.unpacked(masked, refined))
            if refined > expected:
                own.hold(refined - expected)
        rest = refined - beginning
        story.unpacked_s = env.now
        expected_s = pace.expected_s(max(ready_s, env.now), rest, beginning)
        if follows:
            pace.keep(env.now, refined, expected_s)
        else:
            pace.show(refined, expected_s, said["tpot_s"])
        yield own.prefill(rest, beginning, before) if rest else before[0]
        story.own_first_s = env.now
        if request.help.catch_up == "prefill" and answer.all_came and 1 < len(answer) < story.output:
            yield from own.catch_up(refined)
        elif own.keeps or not coming.triggered or len(answer) < story.output:
            # It decodes through the tokens that it was sent as well, and goes on from there (procedure 2).
            yield from own.answer_whole(refined, cloud)
    yield from request.ended()
    yield from cloud.done()
