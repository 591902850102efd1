"""The real backend. MLX is imported when it loads, on the engine's thread, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.executor import Executor
    from engine.server.text import Tokenizer


class MlxBackend:
    """A model directory or hub id on MLX."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tokenizer: Tokenizer | None = None
        self.num_token_ids: int | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "the model is not loaded"
        return self._tokenizer

    def load(self) -> Executor:
        """Raises: EvenflowError: no such model, or it cannot be used."""
        from engine.mlx_backend.executor import MlxExecutor
        from engine.mlx_backend.model import load_model

        loaded = load_model(self._model)
        self._tokenizer = loaded.tokenizer
        self.num_token_ids = getattr(getattr(loaded.model, "args", None), "vocab_size", None)
        return MlxExecutor(loaded)
