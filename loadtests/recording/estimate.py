"""How many tokens a text has when nobody counted them: as many as texts of its length that were counted."""

from __future__ import annotations

_TOKENS_PER_CHAR = 0.25  # of English text
# Texts that differ in length by about so much tell more of the slope than the figure above does.
_TRUST_CHARS = 1000.0


class TokenEstimate:
    """A line through what was counted: tokens that a chat template adds to each prompt, and tokens for each
    character. Least squares, with the slope drawn to a quarter token while lengths have differed little.
    """

    def __init__(self) -> None:
        self._num = 0
        self._chars = self._tokens = 0.0  # means
        self._spread = _TRUST_CHARS**2
        self._shared = _TRUST_CHARS**2 * _TOKENS_PER_CHAR

    def learn(self, num_chars: int, num_tokens: int) -> None:
        """Takes in a prompt that was counted."""
        self._num += 1
        off = num_chars - self._chars
        self._chars += off / self._num
        self._tokens += (num_tokens - self._tokens) / self._num
        self._spread += off * (num_chars - self._chars)
        self._shared += off * (num_tokens - self._tokens)

    def of_prompt(self, num_chars: int) -> int:
        added = max(0.0, self._tokens - self._per_char * self._chars)
        return max(1, round(added + self._per_char * num_chars))

    def of_text(self, num_chars: int) -> int:
        """Of a text without a template around it."""
        return max(1, round(self._per_char * num_chars))

    @property
    def _per_char(self) -> float:
        return max(0.0, self._shared / self._spread)
