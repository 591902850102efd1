"""Ports for programs that cannot be given port 0."""

from __future__ import annotations

import random
import socket

_BELOW_EPHEMERAL = range(20_000, 30_000)  # nobody who asks for any port gets one of these


def free_port() -> int:
    """A port of the loopback interface that is free, and stays so unless somebody names it."""
    while True:
        port = random.SystemRandom().choice(_BELOW_EPHEMERAL)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
