"""How full the engine is."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.prefix_cache import CacheUse


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What is inside at an instant; nothing is, before the model is loaded.

    Attributes:
        waiting_prefill_tokens: uncached prompt tokens in the queue.
        kv_tokens: KV promised to running requests, prompt and output, in the blocks it is allocated in.
        kv_used_tokens: what of it holds something.
    """

    num_running: int = 0
    num_waiting: int = 0
    waiting_prefill_tokens: int = 0
    kv_tokens: int = 0
    kv_used_tokens: int = 0
    prefix_cache: CacheUse = CacheUse()
