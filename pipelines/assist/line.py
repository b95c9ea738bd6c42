"""A device's end of a channel to the cloud."""

import simpy

from kvferry.cloud.story import Story
from kvferry.machine.channel import Channel


class Line:
    """About one request. What first goes wrong on it stands in the story, unless the device has left."""

    def __init__(self, env: simpy.Environment, channel: Channel, story: Story, peer: str) -> None:
        self.env, self.channel, self.story, self.peer = env, channel, story, peer
        self._left = False

    def happened(self, what: str) -> None:
        if not self._left and self.story.happened is None:
            self.story.happened = what

    def leave(self) -> None:
        """Listen no longer, and let the cloud know."""
        self._left = True
        self.channel.hang_up()
