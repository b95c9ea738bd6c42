"""The contract carries many devices and a cloud: prompts go up, tokens come down, each device has its own channel."""

import simpy
from worlds import PARTIES, Party

from kvferry.machine.machine import Machine
from kvferry.machine.ops import DecodeStep, Prefill

TOKENS, PROMPT_BYTES, TOKEN_BYTES = 4, 1000, 10


def serve(cloud: Machine, device: str) -> simpy.events.ProcessGenerator:
    """Answer one device: prefill its prompt, then send a token after every step."""
    channel = cloud.open(device)
    while (prompt := (yield channel.receive())) is not None:
        yield cloud.submit(Prefill(tokens=len(prompt), context_tokens=0))
        for n in range(TOKENS):
            yield channel.send([device, n], TOKEN_BYTES)
            yield cloud.submit(DecodeStep(batch=1, context_tokens=len(prompt) + n))
    channel.close()


def ask(device: Machine, name: str, got: dict[str, list[list[object]]]) -> simpy.events.ProcessGenerator:
    """Send a prompt to the cloud and take its tokens, one by one."""
    channel = device.open("cloud")
    yield channel.send(name * 4, PROMPT_BYTES)
    for _ in range(TOKENS):
        got.setdefault(name, []).append(list((yield channel.receive())))
    channel.close()
    assert (yield channel.receive()) is None


def test_devices_of_one_profile_have_a_channel_each(party: Party) -> None:
    env, got = party.cloud.env, dict[str, list[list[object]]]()
    talks = [env.process(serve(party.cloud, name)) for name in party.devices]
    talks += [env.process(ask(machine, name, got)) for name, machine in party.devices.items()]
    env.run(until=env.all_of(talks))
    assert got == {name: [[name, n] for n in range(TOKENS)] for name in party.devices}
    # Up and down, every byte takes its time where the world models one.
    if party.bytes_per_s is not None:
        assert env.now >= (PROMPT_BYTES + TOKENS * TOKEN_BYTES) / party.bytes_per_s


def test_there_is_a_party_of_every_backend() -> None:
    assert set(PARTIES) == {"fake", "sim", "live"}
