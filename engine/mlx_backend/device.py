"""What MLX computes on, and how much memory it has."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx


def on_cpu() -> bool:
    """Whether MLX computes on the CPU here, not on Metal or CUDA."""
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def on_cuda() -> bool:
    return not on_cpu() and bool(mx.cuda.is_available())


def memory_bytes() -> int:
    """Memory that weights and caches can share: the GPU's, or this machine's within its container."""
    if not on_cpu():
        facts = mx.device_info()
        for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if key in facts:
                return int(facts[key])
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _container_limit())


def _container_limit() -> int:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        return 1 << 62  # no cgroup, or no limit ("max")


def open_stream() -> None:
    """Gives this thread a stream of its own to compute on.

    A thread has one to begin with; `MlxExecutor.close` ends it, and without a new one the thread could
    not load another model.
    """
    mx.set_default_stream(mx.new_stream(mx.default_device()))
