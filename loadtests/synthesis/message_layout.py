"""Where the messages of a prompt begin and end, in tokens, so that prompts share what a trace says.

A trace gives a prompt's length and the names of its blocks: prompts whose first names are equal begin with
the same tokens. The chat template is in the way of that. A prompt ends with tokens of the template, and a
prompt that goes on from there has to hold the same tokens at the same place. So it is cut there, as a chat
client's next prompt is: the earlier prompt, its answer, a further message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadtests.synthesis.lexicon import Shape
from loadtests.traffic.schedule import ScheduledRequest

Span = tuple[int, int]  # tokens of a message's words: from, up to
_Key = tuple[int, str]  # a block: its place and its name


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt's messages, the user's first, in turns.

    Attributes:
        num_tokens: as planned, or of the shortest prompt there is.
        num_missed: places where it should have been cut and there was no room.
    """

    spans: tuple[Span, ...]
    num_tokens: int
    num_missed: int = 0


class Layouts:
    """The layouts of requests that are sent together."""

    def __init__(self, requests: Iterable[ScheduledRequest], shape: Shape) -> None:
        self._shape = shape
        self._cuts: dict[_Key, dict[int, int]] = {}  # in a block: end of a prompt → tokens of its answer
        listed = [request for request in requests if request.prefix]
        by_id = {request.id: request for request in listed}
        for request in listed if shape.has_turns else ():
            earlier = by_id.get(request.after or "")
            if earlier and continues(earlier, request):
                self._cut_after(earlier, request)
        for request in listed:
            self._cut_within_blocks(request)

    def of(self, request: ScheduledRequest) -> Layout:
        """The layout of one of the requests."""
        shape, total = self._shape, max(request.prompt_tokens, self._shape.shortest)
        spans: list[Span] = []
        start, num_missed = shape.head, 0
        for end, answer in self._cuts_of(request):
            said = end + (shape.answer or 0)
            resumed = said + answer + (shape.turn or 0)
            if not shape.has_turns or end - shape.tail < start or resumed + shape.tail > total:
                num_missed += end != total
                continue
            spans += [(start, end - shape.tail), (said, said + answer)]
            start = resumed
        spans.append((start, total - shape.tail))
        return Layout(tuple(spans), total, num_missed)

    def _cuts_of(self, request: ScheduledRequest) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for key in enumerate(request.prefix) if self._cuts else ():
            found |= self._cuts.get(key, {})
        return sorted(found.items())

    def _cut_after(self, earlier: ScheduledRequest, later: ScheduledRequest) -> None:
        """The later prompt holds the earlier one whole, then its answer as far as there is room."""
        shape, end = self._shape, earlier.prompt_tokens
        room = later.prompt_tokens - end - (shape.answer or 0) - (shape.turn or 0) - shape.tail
        if room >= 0:
            answer = max(0, earlier.max_tokens - (shape.answer or 0))
            self._add(later, end, min(answer, room))

    def _cut_within_blocks(self, request: ScheduledRequest) -> None:
        """The template's tail reaches into a whole block: whoever has that block has the tail, too."""
        end, block = request.prompt_tokens, request.prefix_block_tokens
        if end - self._shape.tail < end - end % block:
            self._add(request, end, 0)

    def _add(self, request: ScheduledRequest, end: int, answer: int) -> None:
        place = (end - self._shape.tail) // request.prefix_block_tokens
        if 0 <= place < len(request.prefix):
            self._cuts.setdefault((place, request.prefix[place]), {}).setdefault(end, answer)


def continues(earlier: ScheduledRequest, later: ScheduledRequest) -> bool:
    """Whether the later prompt's blocks begin with all of the earlier prompt."""
    names, block = earlier.prefix, earlier.prefix_block_tokens
    whole = len(names) * block >= earlier.prompt_tokens and block == later.prefix_block_tokens
    return whole and later.prompt_tokens > earlier.prompt_tokens and later.prefix[: len(names)] == names
