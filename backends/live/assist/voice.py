"""What a real machine says of answers, token by token, and how it goes on with what a cloud has said."""

from collections.abc import Callable, Sequence

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.machine.following import Following
from kvferry.machine.handles import Continued
from kvferry.model.tokens import Tokens

# A token of an answer: its id, and what it adds to the text.
Token = tuple[int, str]


class Said:
    """An answer under way. ``next``: the model's next token, which has not been read; ``said``: what has been said;
    ``told``: the text that it came to."""

    def __init__(self) -> None:
        self.next = 0
        self.said: list[int] = []
        self.told = ""


class Voice:
    """Says answers in the text of `tokens`. ``env``: of the machine that decodes."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.env: WallClockEnvironment | None = None

    def say(self, asked: Said) -> Token:
        """The next token, with what it adds to the text: nothing, where a character is not complete."""
        asked.said.append(asked.next)
        text = self._tokens.decode(asked.said).rstrip("\ufffd")
        before, asked.told = asked.told, text
        return asked.next, text[len(before) :]

    def texts(self, before: Sequence[int], ids: Sequence[int]) -> list[Token]:
        """Returns tokens with what each adds to the text behind those before."""
        told, found = self._tokens.decode(before).rstrip("\ufffd"), []
        for n, one in enumerate(ids, 1):
            text = self._tokens.decode([*before, *ids[:n]]).rstrip("\ufffd")
            found.append((one, text[len(told) :]))
            told = text
        return found

    def followed(self, asked: Said, after: Callable[[Sequence[int]], int], of: Continued, tokens: int) -> int:
        """Further tokens of an answer up to so many, those of a cloud first; `after` returns what the model says behind
        a beginning. Returns how many of the cloud's differ from what the model would have said. A token of the cloud's
        that is neither due nor there when the model has its own is not waited for."""
        following = of.following
        assert following is not None
        answer: list[int] = []
        corrected, came = 0, 0
        while came < tokens and (token := following.at(came, self._spare_s(following, came))) is not None:
            came += 1
            if not of.by_text:
                corrected += token[0] != asked.next
                answer.append(token[0])
                # The token that the cloud said is the next one's input (procedure 2).
                if came < tokens:
                    asked.next = after(answer)
        if of.by_text and came:
            answer = self._tokens.encode("".join(text for _, text in following.pieces[:came]))
        if not came:
            answer, came = [one for one, _ in of.stands], len(of.stands)
        if (of.by_text or of.stands) and answer and came < tokens:
            asked.next = after(answer)
        asked.said, asked.told = answer, self._tokens.decode(answer).rstrip("\ufffd")
        while came < tokens:
            token = self.say(asked)
            came += 1
            self._tell(of, token)
            if came < tokens:
                asked.next = after(asked.said)
        return corrected

    def _spare_s(self, following: Following, n: int) -> float | None:
        """Until the cloud's n-th token is due; None: whenever it comes."""
        if following.slot_s is None:
            return None
        assert self.env is not None
        return max(0.0, following.slot_s(n) - self.env.now)

    def _tell(self, of: Continued, token: Token) -> None:
        env, said = self.env, of.said
        if said is not None:
            assert env is not None
            env.tell(lambda news: said(*news), (env.now, token))
