"""Prompts that are still to be read, and the passes that spread that over steps by layers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.executor import ModelInfo
from engine.core.plan import LayeredPass

# What a layer computes for all tokens of a pass at once takes memory beside the weights: for these, 0.7 GB in
# the feed-forward of an 8B-class model. With twice as many, 32,000 tokens took 3 % less on an H200 (our
# measurement, November 2026).
MOST_TOKENS = 8192
# A step of a layered pass does at least so many layers: with fewer, to halt where a layer ends would be too
# coarse for a step to last as long as it is meant to. Chosen, not measured.
_LEAST_LAYERS = 4


@dataclass(frozen=True, slots=True)
class Unread:
    """A prompt that is not wholly read yet.

    Attributes:
        layered: the pass that is under way, or else that a chunk would begin.
        num_undivided: tokens up to where its caches must be halted; all of them when None.
    """

    request_id: str
    start: int
    num_tokens: int
    waited_s: float
    layered: LayeredPass | None = None
    num_undivided: int | None = None

    @property
    def least_tokens(self) -> int:
        """The fewest that a step can read of it."""
        return self.layered.next_halt(self.start) - self.start if self.layered else 1

    def halt(self, num_tokens: int) -> int:
        """The most of so many tokens after which reading can be halted."""
        return self.layered.last_halt(self.start + num_tokens) - self.start if self.layered else num_tokens


def most_steps(model: ModelInfo) -> int:
    """That a layered pass is spread over; 1 when there are none.

    None on a device that does not run ahead, which is a CPU, where rows that write share the chunk's pass:
    beside a layered one they need their own, and a pass over the weights costs more there than small matrices
    do. Beside three streams, chunks of 64 took 7 % longer (our measurement, November 2026).
    """
    if model.one_pass and not model.runs_ahead:
        return 1
    return max(1, model.num_layers // _LEAST_LAYERS)


def shares_pass(model: ModelInfo) -> bool:
    """Whether rows that write mostly go through the model with the chunks beside them."""
    return model.one_pass and most_steps(model) == 1


def begin(prompt: Unread, step_tokens: int, model: ModelInfo, grid_tokens: int = 1) -> LayeredPass | None:
    """The pass that reading goes on with where steps read `step_tokens`; None when a chunk is as good.

    Args:
        grid_tokens: as of `tokens_on_grid`, for a pass that does not end where it must.
    """
    num_tokens = prompt.num_tokens if prompt.num_undivided is None else prompt.num_undivided
    most = min(num_tokens, MOST_TOKENS, step_tokens * most_steps(model))
    if step_tokens < most < num_tokens and grid_tokens > 1:
        most = tokens_on_grid(most, grid_tokens)
    elif step_tokens < most < num_tokens:
        # A whole number of layers for each step.
        layers = -(-step_tokens * model.num_layers // most)
        most = step_tokens * model.num_layers // layers
    if most <= step_tokens or most < model.num_layers:
        return None
    return LayeredPass(prompt.start, most, model.num_layers)


def pass_tokens(step_tokens: int, model: ModelInfo) -> int:
    """Of a long prompt's passes where steps read `step_tokens`."""
    return max(step_tokens, min(step_tokens * most_steps(model), MOST_TOKENS))


def tokens_on_grid(num_tokens: int, grid_tokens: int) -> int:
    """Fewer by less than a quarter or a step of the grid, so that few lengths occur; as many where they are
    fewer than the grid's.
    """
    if not 1 < grid_tokens <= num_tokens:
        return num_tokens
    step = grid_tokens
    while 8 * step <= num_tokens:
        step *= 2
    return num_tokens // step * step
