"""A load client comes before the server, as far as the system lets it.

It needs the CPU for moments, and what keeps it off is measured as if the server had done it. Dispatch lag p99
at 20 requests/s beside 60 streams, two cores with a load of 2 to 7, medians of six runs: 23 ms as an ordinary
process, 1.8 ms with a short slice, 1.1 ms in real time (measured in November 2026, Linux 6.18).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct

_NICE = -10
_SLICE_NS = 100_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # system calls; Python's os module has no function for it
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, …


def come_first() -> None:
    """In real time where that is allowed (Linux, as root). Else with a better nice value where that is, and
    on Linux since 6.12 with a short slice, which anybody may have: who asks for little is served sooner.
    """
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or not allowed
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    _shorten_slice()


def _shorten_slice() -> None:
    """Older kernels and other systems leave everything as it is."""
    call = _SCHED_SETATTR.get(platform.machine())
    if platform.system() == "Linux" and call is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(call, 0, attributes, 0)
