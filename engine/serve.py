"""Running the server: listener, signals, the announcement, and a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from engine.core.errors import EvenflowError
from engine.core.executor import ModelInfo
from engine.server.app import AppOptions, create_app
from engine.server.service import Service

# A thread that wants the interpreter asks for it after this long, not after 5 ms: while a worker thread
# encodes a prompt or dumps step records, the event loop's median lag fell from 4.3 to 1.2 ms (our
# measurement, November 2026), and the engine thread's plan waits no longer either.
_SWITCH_INTERVAL_S = 0.001

_ONE_BY_ONE = (
    "note: this model's caches cannot stand in one batch, so each stream costs a pass of its own; "
    "expect a step of n streams to take n times as long as one"
)


class StartError(EvenflowError):
    """The server cannot start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a server runs, and how it tells of it.

    Attributes:
        grace_s: how long running streams may go on after the first signal.
        announce: one line of JSON on stdout when ready; end when stdin does.
    """

    grace_s: float = 10.0
    announce: bool = False
    log_level: str = "warning"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        StartError: the address is not ours or taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener


class _Server(uvicorn.Server):
    """A server that leaves signals to us: it would close its listener first, and answer nothing more."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    service: Service, listener: socket.socket, app_options: AppOptions, options: ServeOptions
) -> None:
    """Serves until a signal (or, when announced, the end of stdin), then drains.

    Raises:
        EvenflowError: the web server did not start, or the model could not be loaded.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    config = uvicorn.Config(
        create_app(service, app_options),
        log_level=options.log_level,
        access_log=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=75,
        lifespan="on",
    )
    server = _Server(config)
    stop = _stop_on_signals()
    if options.announce:
        _stop_on_end_of_stdin(stop.set)
    serving = asyncio.create_task(_serve_web(server, listener))
    error = await _run_until(
        stop, serving, service, server, lambda model: _say_ready(model, service, listener, options)
    )
    if error is None:
        await service.drain(options.grace_s)
    server.should_exit = True
    await asyncio.wait({serving})
    if isinstance(error, EvenflowError):
        raise error
    if error:
        raise StartError(f"the model cannot be loaded: {type(error).__name__}: {error}") from error
    serving.result()


async def _run_until(
    stop: asyncio.Event,
    serving: asyncio.Task[None],
    service: Service,
    server: uvicorn.Server,
    on_ready: Callable[[ModelInfo], None],
) -> BaseException | None:
    """Waits for readiness and then for `stop`; what made starting or loading fail, if it did."""
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if serving.done():
        return serving.exception()
    stopping = asyncio.create_task(stop.wait())
    waiting: set[asyncio.Future[Any]] = {stopping, service.ready}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if service.ready.done():
        if error := service.ready.exception():
            stopping.cancel()
            return error
        on_ready(service.ready.result())
    await stopping
    if not service.ready.done():
        # A load cannot be broken off, and may be a long download; nothing has begun that could be lost.
        os._exit(0)
    return None


async def _serve_web(server: uvicorn.Server, listener: socket.socket) -> None:
    """Raises: StartError: it did not start; uvicorn ends the process then, or returns as if all was well."""
    with contextlib.suppress(SystemExit):
        await server.serve(sockets=[listener])
    if not server.started:
        raise StartError("the web server did not start; the lines before this one say why")


def _say_ready(model: ModelInfo, service: Service, listener: socket.socket, options: ServeOptions) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    print(ready_lines(url, service.served_name, model), file=sys.stderr, flush=True)
    if options.announce:
        print(json.dumps({"url": url, "model": service.served_name, "pid": os.getpid()}), flush=True)


def ready_lines(url: str, served_name: str, model: ModelInfo) -> str:
    """What is said once requests are served."""
    kv = f"{model.kv_capacity_tokens:,} KV tokens"
    line = f"engine ready on {url} · model {served_name} · context {model.context_tokens:,} · {kv}"
    return line if model.batches else f"{line}\n{_ONE_BY_ONE}"


def _stop_on_signals() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process at once."""
    stop = asyncio.Event()
    signals: list[int] = []

    def on_signal(number: int) -> None:
        if signals:
            os._exit(128 + number)
        signals.append(number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop


def _stop_on_end_of_stdin(stop: Callable[[], None]) -> None:
    """Stops when the program that started us is gone: its end of our stdin closes with it."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are ending anyway
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=watch, name="stdin", daemon=True).start()
