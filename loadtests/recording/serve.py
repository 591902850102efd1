"""Running the recording proxy: listener, signals, and an end at which every row is written."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import uvicorn

from engine.core.redaction import BLOCK_CHARS, BLOCK_TOKENS, Redactor
from engine.core.trace import TraceHeader, format_header
from loadtests.errors import RecordingError
from loadtests.recording.counting import TokenCounter
from loadtests.recording.ledger import Ledger, Tally
from loadtests.recording.proxy import Proxy
from loadtests.recording.trace_file import TraceFile

HOST = "127.0.0.1"
_GRACE_S = 10
# Servers close connections that are idle for five seconds or more; the first to do so should be us.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0)
_SHOW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """What is recorded, and where.

    Attributes:
        upstream: the server's address.
        port: of the proxy, on loopback; 0 takes a free one.
        counts_tokens: the server's `/tokenize` gives token ids.
        max_bytes: of a file; the recording goes on in a numbered one then. 0 is no limit.
    """

    upstream: str
    out: Path
    port: int = 0
    counts_tokens: bool = False
    max_bytes: int = 0


@dataclass(slots=True)
class Progress:
    """What was recorded so far; `num_running` is being passed on."""

    tally: Tally
    num_running: int = 0
    unrecorded: Mapping[str, int] = field(default_factory=Counter)


class _Server(uvicorn.Server):
    """A server that leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def record(
    options: RecordOptions, on_ready: Callable[[str], None], on_progress: Callable[[Progress], None]
) -> Progress:
    """Passes traffic on and records it until SIGINT or SIGTERM: then takes no more, lets running answers end
    for a while, and writes what is left. A second signal does not wait for them.

    Args:
        on_ready: is given the proxy's address.
        on_progress: is called every second.

    Raises:
        RecordingError: the file cannot be made, or the port is taken.
    """
    redactor = Redactor(secrets.token_bytes(16))
    header, started_s = format_header(_header(options, redactor)), time.perf_counter()
    with (
        contextlib.closing(_listen(options.port)) as listener,
        contextlib.closing(TraceFile(options.out, lambda: header, options.max_bytes)) as file,
    ):
        transport = httpx.AsyncHTTPTransport(limits=_LIMITS)
        counter = TokenCounter(options.upstream, transport) if options.counts_tokens else None
        ledger = Ledger(file, redactor, counter, started_s)
        proxy = Proxy(options.upstream, transport, ledger.put)
        progress = Progress(ledger.tally, unrecorded=proxy.unrecorded)

        async def show() -> None:
            while True:
                progress.num_running = proxy.num_running
                on_progress(progress)
                await asyncio.sleep(_SHOW_S)

        async def run() -> None:
            async with transport:
                writing, showing = asyncio.create_task(ledger.run()), asyncio.create_task(show())
                await _serve(proxy, listener, on_ready)
                showing.cancel()
                await ledger.close()
                await writing

        asyncio.run(run())
        return progress


def _header(options: RecordOptions, redactor: Redactor) -> TraceHeader:
    return TraceHeader(
        t0=datetime.now(UTC).isoformat(timespec="milliseconds"),
        block=BLOCK_TOKENS if options.counts_tokens else 0,
        text_block=None if options.counts_tokens else BLOCK_CHARS,
        salt_id=redactor.salt_id,
        source="proxy",
    )


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port), backlog=1024)
    except OSError as error:
        raise RecordingError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from error


async def _serve(proxy: Proxy, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serves until a signal, and until everything is handed over."""
    config = uvicorn.Config(
        proxy,
        lifespan="off",
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop, server)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    on_ready(f"http://{HOST}:{listener.getsockname()[1]}")
    await serving
    await _until_handed_over(proxy)


def _stop(server: uvicorn.Server) -> None:
    server.force_exit = server.should_exit
    server.should_exit = True


async def _until_handed_over(proxy: Proxy) -> None:
    """Requests that were cut at the end are rows too, a moment later."""
    for _ in range(100):
        if not proxy.num_running:
            return
        await asyncio.sleep(0.01)
