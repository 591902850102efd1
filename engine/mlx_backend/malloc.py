"""Keeping freed memory in the process, for MLX's CPU build.

MLX's CPU allocator is malloc and free. glibc gives a large block back to the system when it is freed,
so every intermediate array of a few megabytes is paged in anew, 4 KiB at a time: a 12 MB exponential
took 4.3 ms with the pages kept and 18 ms without, in a virtual machine (our measurement, November 2026).
"""

from __future__ import annotations

import ctypes
import sys

# Source: glibc, malloc.h and mallopt(3). The mapping threshold has 32 MiB as its maximum.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> bool:
    """Asks glibc not to return freed blocks to the system; False where there is no glibc to ask."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, _LARGEST_INT))
    return all(mallopt(option, value) for option, value in wanted)
