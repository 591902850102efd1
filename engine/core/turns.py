"""Which requests are turns of one conversation, and which turn each of them follows.

A client that names its sessions is taken at its word. Of others the prompt tells: a chat client sends the
whole conversation again with every turn, so a request whose prompt begins with all the messages of an
earlier one is a later turn of that one. Only requests of the same user are compared.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

MAX_REMEMBERED = 4096  # conversations: at one request a second, an hour of silence before one is forgotten
_MAX_BRANCHES = 8  # turns of a named session that may still be followed


@dataclass(frozen=True, slots=True)
class Span:
    """A request that has ended; seconds on one clock."""

    id: str
    arrived_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Stem:
    """A prompt up to the end of its last message: what a later turn's prompt begins with.

    Attributes:
        units: the prompt, as token ids or as characters; it may go on after the stem (with what makes a
            model answer).
        length: of the stem, in units; 0 when the prompt says nothing of its session.
        hashes: of the prompt's blocks from the front, each of everything up to its block's end.
    """

    units: Sequence[int] | str
    length: int
    hashes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's place in its session.

    Attributes:
        number: from 1, in the order in which the session's turns ended.
        after: id of the turn that it follows; None for a first one.
        think_s: from that turn's end to this request.
    """

    session: str
    number: int
    after: str | None = None
    think_s: float | None = None


@dataclass(slots=True)
class _Session:
    name: str
    num_turns: int = 0
    ended: deque[_Ended] = field(default_factory=lambda: deque(maxlen=_MAX_BRANCHES))


@dataclass(slots=True, eq=False)
class _Ended:
    """A turn that later ones may follow; `place` is where its stem is kept."""

    span: Span
    session: _Session
    place: tuple[Hashable, Hashable] = ("", "")
    is_followed: bool = False


class Turns:
    """Finds each request's place. Requests are given in the order in which they ended.

    Args:
        block: units per hashed block of the stems.
        max_remembered: named sessions, and turns without a name, that later turns may follow; the oldest
            are forgotten, and a turn that comes later still begins a session of its own.
    """

    def __init__(self, block: int, max_remembered: int = MAX_REMEMBERED) -> None:
        self._block = block
        self._max = max_remembered
        self._named: OrderedDict[str, _Session] = OrderedDict()
        # Stems by their user and the hash of their whole blocks, and there by the units that are left.
        self._stems: dict[Hashable, dict[Hashable, list[_Ended]]] = {}
        self._oldest: deque[_Ended] = deque()

    def __len__(self) -> int:
        """Sessions and turns that are remembered."""
        return len(self._named) + len(self._oldest)

    def of_session(self, name: str, span: Span) -> Turn:
        """The place of a request whose client named its session."""
        session = self._named.setdefault(name, _Session(name))
        self._named.move_to_end(name)
        if len(self._named) > self._max:
            self._named.popitem(last=False)
        newest_first = reversed(session.ended)
        before = next((turn for turn in newest_first if turn.span.ended_s <= span.arrived_s), None)
        session.ended.append(_Ended(span, session))
        return _follow(before, session, span)

    def of_stem(self, user: str | None, stem: Stem, span: Span) -> Turn:
        """The place of any other request: it follows the turn whose stem is the longest that its own
        begins with. A first turn's id names its session.
        """
        before = self._find(user, stem, span.arrived_s)
        session = before.session if before else _Session(span.id)
        turn = _follow(before, session, span)
        if stem.length:
            self._remember(user, stem, _Ended(span, session))
        return turn

    def _find(self, user: str | None, stem: Stem, arrived_s: float) -> _Ended | None:
        for num_blocks in range((stem.length - 1) // self._block, -1, -1):
            if tails := self._stems.get(_root(user, stem, num_blocks)):
                rest = self._after(stem, num_blocks, stem.length - 1)
                for size in range(len(rest), -1, -1):
                    if found := _latest(tails.get(rest[:size], ()), arrived_s):
                        return found
        return None

    def _remember(self, user: str | None, stem: Stem, turn: _Ended) -> None:
        num_blocks = stem.length // self._block
        root, tail = _root(user, stem, num_blocks), self._after(stem, num_blocks, stem.length)
        turn.place = (root, tail)
        self._stems.setdefault(root, {}).setdefault(tail, []).append(turn)
        self._oldest.append(turn)
        if len(self._oldest) > self._max:
            self._forget(self._oldest.popleft())

    def _forget(self, turn: _Ended) -> None:
        root, tail = turn.place
        tails = self._stems[root]
        tails[tail].remove(turn)
        if not tails[tail]:
            del tails[tail]
        if not tails:
            del self._stems[root]

    def _after(self, stem: Stem, num_blocks: int, end: int) -> str | tuple[int, ...]:
        """The units between `num_blocks` whole blocks and `end`, less than a block of them."""
        start = num_blocks * self._block
        units = stem.units[start : min(end, start + self._block - 1)]
        return units if isinstance(units, str) else tuple(units)


def _root(user: str | None, stem: Stem, num_blocks: int) -> Hashable:
    return user, stem.hashes[num_blocks - 1] if num_blocks else ""


def _latest(turns: Iterable[_Ended], arrived_s: float) -> _Ended | None:
    """Of equal prompts the last to end before `arrived_s`, but rather one that nobody has followed yet."""
    ended = (turn for turn in turns if turn.span.ended_s <= arrived_s)
    return max(ended, key=lambda turn: (not turn.is_followed, turn.span.ended_s), default=None)


def _follow(before: _Ended | None, session: _Session, span: Span) -> Turn:
    session.num_turns += 1
    if before is None:
        return Turn(session.name, session.num_turns)
    before.is_followed = True
    think_s = span.arrived_s - before.span.ended_s
    return Turn(session.name, session.num_turns, before.span.id, think_s)
