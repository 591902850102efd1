"""`engine`: serve a model, fit a cost model, talk to a server. Imports are late: `--help` must be fast."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from engine.default_model import DEFAULT_MODEL

if TYPE_CHECKING:
    from engine.config_store import ConfigStore
    from engine.server.service import Backend, Witness

LOG_LEVELS = ("debug", "info", "warning", "error")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Exits 0 done, 1 failed (one line on stderr), 2 wrong usage."""
    arguments = _parser().parse_args(argv)
    sys.exit(arguments.run(arguments))


def _parser() -> _Parser:
    parser = _Parser(prog="engine", description="An MLX server that keeps streams moving.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_serve(commands)
    fit = commands.add_parser("fit-cost", help="fit a cost model to a --steps file")
    fit.add_argument("steps", type=Path, metavar="STEPS.jsonl")
    fit.set_defaults(run=_fit_cost)
    chat = commands.add_parser("chat", help="talk to a running server")
    chat.add_argument("--url", default="http://127.0.0.1:8080", help="the server (default %(default)s)")
    chat.add_argument("--api-key-file", type=Path, metavar="F", help="its first key is sent")
    chat.add_argument("--system", metavar="TEXT", help="a system message")
    chat.add_argument("--max-tokens", type=_count, metavar="N", help="longest answer")
    chat.add_argument("--temperature", type=_number, default=0.7, metavar="T", help="default %(default)s")
    chat.set_defaults(run=_chat)
    return parser


def _add_serve(commands: argparse._SubParsersAction[_Parser]) -> None:
    serve = commands.add_parser("serve", help="serve a model over OpenAI's API")
    add = serve.add_argument
    add("--model", default=DEFAULT_MODEL, metavar="PATH|HUB_ID", help="default %(default)s")
    add("--host", default="127.0.0.1", help="default %(default)s; another wants --api-key-file")
    add("--port", type=_port, default=8080, help="default %(default)s; 0 takes a free one")
    add("--config", type=Path, metavar="FILE.json", help="the knobs to start with")
    add("--state-dir", type=Path, metavar="DIR", help="keeps config, history and learned costs over restarts")
    add("--record", type=Path, metavar="TRACE.jsonl", help="record the traffic: lengths and hashes, no text")
    add(
        "--record-max-bytes",
        type=_size,
        default=256 << 20,
        metavar="N",
        help="the recording goes on in TRACE.part-2.jsonl then (default %(default)s; 0: never)",
    )
    add("--steps", type=Path, metavar="STEPS.jsonl", help="record every step")
    add("--api-key-file", type=Path, metavar="F", help="keys that /v1 and /tokenize want, one a line")
    add("--admin-key-file", type=Path, metavar="F", help="keys that /admin wants; without, this machine only")
    add("--backend", choices=("mlx", "sim"), default="mlx", help="sim serves the same API without a model")
    add(
        "--grace-s",
        type=_number,
        default=10.0,
        metavar="S",
        help="time for streams to end (default %(default)s)",
    )
    add("--announce", action="store_true", help="one line of JSON on stdout when ready; end when stdin does")
    add("--log-level", choices=LOG_LEVELS, default="warning", help="default %(default)s")
    serve.set_defaults(run=_serve)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return number


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _size(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _port(text: str) -> int:
    # Checked here, for the resolver takes larger numbers modulo 65536.
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; there are 0 to 65535")
    return int(text)


def _serve(arguments: argparse.Namespace) -> int:
    from engine.core.errors import EvenflowError

    try:
        _run_server(arguments)
    except (EvenflowError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _run_server(arguments: argparse.Namespace) -> None:
    import asyncio
    import logging

    from engine.cost_store import CostStore
    from engine.serve import ServeOptions, StartError, bind, serve
    from engine.server.app import AppOptions
    from engine.server.auth import is_loopback, read_keys
    from engine.server.service import Service

    logging.basicConfig(level=arguments.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    api_keys = read_keys(arguments.api_key_file) if arguments.api_key_file else ()
    admin_keys = read_keys(arguments.admin_key_file) if arguments.admin_key_file else ()
    if not is_loopback(arguments.host) and not api_keys:
        raise StartError(f"{arguments.host} is open to others: give --api-key-file, or listen on 127.0.0.1")
    if arguments.state_dir:
        _make_state_dir(arguments.state_dir)
    store = _open_store(arguments)
    listener = bind(arguments.host, arguments.port)
    app_options = AppOptions(api_keys=api_keys, admin_keys=admin_keys, model_ids=(arguments.model,))
    options = ServeOptions(
        grace_s=arguments.grace_s,
        announce=arguments.announce,
        log_level=arguments.log_level,
    )
    backend = _backend(arguments)
    with ExitStack() as closing:
        witnesses = _open_recorders(arguments, backend, closing)
        learned = CostStore(_state_file(arguments, "engine-costs.json"))
        service = Service(backend, store, witnesses=witnesses, learned=learned)
        asyncio.run(serve(service, listener, app_options, options))


def _make_state_dir(directory: Path) -> None:
    """Raises: EvenflowError: nothing can be written there; said now, not when the first change is lost."""
    import tempfile

    from engine.core.errors import EvenflowError, reason

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise EvenflowError(
            f"cannot write to --state-dir {directory}: {reason(error)}; give a directory of your own"
        ) from None


def _open_store(arguments: argparse.Namespace) -> ConfigStore:
    from engine.config_store import ConfigStore, read_config_file

    start = read_config_file(arguments.config) if arguments.config else None
    path = _state_file(arguments, "engine-config.json")
    return ConfigStore(start, path, warn=lambda line: print(f"engine: {line}", file=sys.stderr))


def _state_file(arguments: argparse.Namespace, name: str) -> Path | None:
    return arguments.state_dir / name if arguments.state_dir else None


def _backend(arguments: argparse.Namespace) -> Backend:
    if arguments.backend == "sim":
        from engine.sim_backend import SimBackend

        return SimBackend()
    from engine.backends import MlxBackend

    return MlxBackend(arguments.model)


def _open_recorders(arguments: argparse.Namespace, backend: Backend, closing: ExitStack) -> list[Witness]:
    from engine.recording.lines import RecordError
    from engine.recording.steps import StepRecorder
    from engine.recording.traffic import TrafficRecorder

    if arguments.record and arguments.steps and arguments.record.resolve() == arguments.steps.resolve():
        raise RecordError(f"--record and --steps both name {arguments.record}; give each a file of its own")
    recorders: list[TrafficRecorder | StepRecorder] = []
    if arguments.record:
        recorders.append(
            TrafficRecorder(
                arguments.record,
                # Asked later: the tokenizer is there once the model is loaded.
                lambda: backend.tokenizer.fingerprint,
                max_bytes=arguments.record_max_bytes,
            )
        )
    if arguments.steps:
        recorders.append(StepRecorder(arguments.steps))
    for recorder in recorders:
        closing.callback(recorder.close)
    return list(recorders)


def _fit_cost(arguments: argparse.Namespace) -> int:
    import dataclasses
    import json

    from engine.core.cost_fit import fit_cost_model
    from engine.core.errors import EvenflowError, reason
    from engine.core.step_json import read_steps
    from engine.cost_store import circumstances

    try:
        with open(arguments.steps, encoding="utf-8") as lines:
            steps = list(read_steps(lines))
        fit = fit_cost_model(steps)
        fit.check()
    except (EvenflowError, OSError, UnicodeDecodeError) as error:
        return _fail(f"{arguments.steps}: {reason(error)}")
    for line in fit.table():
        print(line, file=sys.stderr)
    layered = (chunk.layered for step in steps for chunk in step.prefill)
    num_layers = next((one.num_layers for one in layered if one), 1)
    print(json.dumps(dataclasses.asdict(fit) | {"num_layers": num_layers, "circumstances": circumstances()}))
    return 0


def _chat(arguments: argparse.Namespace) -> int:
    from engine.chat import run
    from engine.core.errors import EvenflowError

    try:
        return run(arguments)
    except EvenflowError as error:
        return _fail(str(error))


def _fail(message: str) -> int:
    print("engine: " + " ".join(message.split()), file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
