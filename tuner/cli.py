"""`tuner`: find the config that keeps streams moving, show what was found, put it on a server.

Imports are late: `--help` must be fast.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.commands.arguments import (
    Parser,
    command,
    count,
    duration,
    duration_or_zero,
    pause,
    positive,
    seed,
    speed,
    study_name,
    workers,
)
from tuner.commands.trace_cli import add_trace
from tuner.errors import EXIT_FAILED, EXIT_USAGE, Interrupted, TunerError, UsageError

if TYPE_CHECKING:
    from tuner.server.engine_client import Keys

_URL = "http://127.0.0.1:8080"


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Exits 0 done, 1 failed, 2 wrong usage, 3 no config keeps the SLO, 130 Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    parser = command_line()
    parser.refuse_empty(words)
    arguments = parser.parse_args(words)
    from tuner.signals import interruptible

    try:
        with interruptible():
            status = arguments.run(arguments)
    except UsageError as error:
        status = _fail(str(error), EXIT_USAGE)
    except TunerError as error:
        status = _fail(str(error), EXIT_FAILED)
    except Interrupted as error:
        status = _fail(_how_to_go_on(error), error.exit_status)
    except BrokenPipeError:
        sys.stderr.close()
        status = EXIT_FAILED
    sys.exit(status)


def _fail(message: str, status: int) -> int:
    print("tuner: " + " ".join(message.split()), file=sys.stderr)
    return status


def _how_to_go_on(error: Interrupted) -> str:
    return f"interrupted; {error.hint}" if error.hint else "interrupted"


# -- arguments -------------------------------------------------------------------------------------------


def command_line() -> Parser:
    """Reads the arguments; what they ask for is in `run`."""
    parser = Parser(prog="tuner", description="Finds the config that keeps every stream moving.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    _add_optimize(commands)
    _add_sweep(commands)
    _add_replay(commands)
    add_trace(commands)
    _add_simulate(commands)
    _add_show(commands)
    _add_report(commands)
    _add_apply(commands)
    _add_rollback(commands)
    selftest = command(commands, "selftest", "check the load client against scripted streams", _selftest)
    selftest.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _add_optimize(commands: Any) -> None:
    parser = command(
        commands,
        "optimize",
        "find the shortest long TTFT at which no stream pauses longer than the SLO",
        _optimize,
    )
    add = parser.add_argument
    add("--slo-pause", type=pause, required=True, metavar="0.5s", help="longest pause of any stream")
    traffic = parser.add_mutually_exclusive_group()
    traffic.add_argument(
        "--profile", default="ambush", metavar="NAME|FILE.yaml", help="traffic (default %(default)s)"
    )
    traffic.add_argument("--replay", metavar="TRACE", help="replay recorded traffic instead")
    _add_target(parser)
    add("--trials", type=positive, default=12, metavar="N", help="live search trials (default %(default)s)")
    add("--budget", type=duration, default=280.0, metavar="10m", help="time for everything (default 280s)")
    add("--study", type=study_name, metavar="NAME", help="name of the study; goes on with it when it exists")
    add("--seed", type=seed, default=1, metavar="N", help="of the traffic (default %(default)s)")
    told = "load processes of a run (default 1); for more engines, one tuner each on the same --study"
    add("--workers", type=workers, default=1, metavar="N", help=told)
    add("--fresh", action="store_true", help="use nothing that earlier studies know")
    add("--simulate", type=count, default=300, metavar="N", help="configs simulated (default %(default)s)")
    add("--no-selftest", action="store_true", help="do not check the load client first")
    add("--apply", action="store_true", help="put the winner on --engine")
    _add_db(parser)
    add("--json", action="store_true", help="one JSON object on stdout")


def _add_target(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--engine", metavar="URL", help="tune this running engine; its config is put back at the end")
    add("--model", metavar="M", help="model of the engine that is started otherwise")
    add("--backend", choices=("mlx", "sim"), default="mlx", help="of the engine that is started otherwise")
    _add_keys(parser)


def _add_keys(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--api-key-file", type=Path, metavar="F", help="or $EVENFLOW_API_KEY")
    add("--admin-key-file", type=Path, metavar="F", help="or $EVENFLOW_ADMIN_KEY")


def _add_db(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", metavar="FILE|URL", help="default evenflow.db in the state directory")


def _add_sweep(commands: Any) -> None:
    parser = command(commands, "sweep", "TTFT, worst pause and overhead per chunk size", _sweep)
    add = parser.add_argument
    add("--chunks", metavar="SIZES", default=None, help="default whole,2048,1024,512,256, scaled to the host")
    add("--streams", type=positive, default=3, metavar="N", help="beside the prompt (default %(default)s)")
    add("--prompt-tokens", type=positive, metavar="N", help="default: about three seconds of reading")
    add("--repeats", type=positive, default=1, metavar="N", help="runs per chunk size (default %(default)s)")
    add("--seed", type=seed, default=1, metavar="N", help="of the prompts (default %(default)s)")
    _add_target(parser)
    add("--json", action="store_true", help="one JSON object on stdout")


def _add_replay(commands: Any) -> None:
    parser = command(commands, "replay", "send recorded traffic, or a profile's, to a server", _replay)
    add = parser.add_argument
    what = "a trace of any known format; or a profile, sized for the server"
    add("trace", metavar="TRACE|PROFILE", help=what)
    add("--to", default=_URL, metavar="URL", help="the server (default %(default)s)")
    add(
        "--mode",
        choices=("open", "session"),
        help="open: every request at its time (default); session: a later turn after the answer before it",
    )
    add("--speed", type=speed, metavar="X", help="2 sends everything in half the time (default 1)")
    add("--window", type=duration, metavar="60s", help="only the trace's first so many seconds")
    add("--slo-pause", type=duration, default=0.5, metavar="0.5s", help="longest pause (default 0.5s)")
    add("--seed", type=seed, default=1, metavar="N", help="of the prompts (default %(default)s)")
    _add_keys(parser)
    add("--json", action="store_true", help="one JSON object on stdout")


def _add_simulate(commands: Any) -> None:
    parser = command(commands, "simulate", "what a trace would come to, from a cost model alone", _simulate)
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a trace of any known format")
    add("--cost", type=Path, required=True, metavar="COST.json", help="what `engine fit-cost` printed")
    add("--config", type=Path, metavar="FILE", help="knobs as `engine serve` takes them (default: defaults)")
    add("--mode", choices=("open", "session"), default="open", help="as of replay (default %(default)s)")
    add("--speed", type=speed, default=1.0, metavar="X", help="2 sends everything in half the time")
    add("--window", type=duration, metavar="60s", help="only the trace's first so many seconds")
    add("--context", type=positive, default=32768, metavar="N", help="of the model (default %(default)s)")
    add("--layers", type=positive, metavar="N", help="of the model (default: those that `fit-cost` saw used)")
    add("--slo-pause", type=duration, default=0.5, metavar="0.5s", help="longest pause (default 0.5s)")
    add("--seed", type=seed, default=1, metavar="N", help="of the stalls (default %(default)s)")
    add("--json", action="store_true", help="one JSON object on stdout")


def _add_show(commands: Any) -> None:
    parser = command(commands, "show", "list studies, or one study's trials and winner", _show)
    parser.add_argument("study", nargs="?", metavar="STUDY")
    _add_db(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_report(commands: Any) -> None:
    parser = command(commands, "report", "a study as one HTML file: front, before and after, trials", _report)
    parser.add_argument("study", nargs="?", metavar="STUDY", help="default: the one worked on last")
    parser.add_argument("--html", type=Path, metavar="FILE", help="where to write it (default STUDY.html)")
    _add_db(parser)


def _add_apply(commands: Any) -> None:
    parser = command(
        commands, "apply", "put a study's winner on a server, watch it, keep it or take it back", _apply
    )
    add = parser.add_argument
    add("study", nargs="?", metavar="STUDY", help="default: the one worked on last")
    add("--trial", type=count, metavar="N", help="this trial's config instead of the winner's")
    add("--to", required=True, metavar="URL", help=f"the server, as in {_URL}")
    watch = "how long to watch (default 60s; 0 not)"
    add("--watch", type=duration_or_zero, default=60.0, metavar="60s", help=watch)
    _add_keys(parser)
    _add_db(parser)
    add("--json", action="store_true", help="one JSON object on stdout")


def _add_rollback(commands: Any) -> None:
    parser = command(commands, "rollback", "put the config back that a server had kept before", _rollback)
    parser.add_argument("--to", required=True, metavar="URL", help=f"the server, as in {_URL}")
    _add_keys(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


# -- commands --------------------------------------------------------------------------------------------


def _optimize(arguments: argparse.Namespace) -> int:
    from tuner.commands.optimize import run

    return run(arguments, _keys(arguments))


def _sweep(arguments: argparse.Namespace) -> int:
    from tuner.commands.sweep import run

    return run(arguments, _keys(arguments))


def _replay(arguments: argparse.Namespace) -> int:
    from tuner.commands.replay import run

    return run(arguments, _keys(arguments))


def _simulate(arguments: argparse.Namespace) -> int:
    from tuner.commands.simulate import run

    return run(arguments)


def _show(arguments: argparse.Namespace) -> int:
    from tuner.commands.show import run

    return run(arguments)


def _report(arguments: argparse.Namespace) -> int:
    from tuner.commands.report import run

    return run(arguments)


def _apply(arguments: argparse.Namespace) -> int:
    from tuner.commands.apply import run

    return run(arguments, _keys(arguments))


def _rollback(arguments: argparse.Namespace) -> int:
    from tuner.commands.apply import run_rollback

    return run_rollback(arguments, _keys(arguments))


def _selftest(arguments: argparse.Namespace) -> int:
    from loadtests.errors import LoadTestError
    from loadtests.selftest.checks import run_selftest

    try:
        result = run_selftest()
    except LoadTestError as error:
        raise TunerError(str(error)) from error
    if arguments.json:
        print(json.dumps(result.to_mapping()))
    else:
        for check in result.checks:
            print(f"{'✓' if check.ok else '✗'} {check.name}: {check.detail}")
    if result.ok:
        return 0
    return _fail("the load client is not exact on this machine; its checks say where", EXIT_FAILED)


def _keys(arguments: argparse.Namespace) -> Keys:
    from tuner.preflight import read_key
    from tuner.server.engine_client import Keys

    return Keys(
        api=read_key(arguments.api_key_file, os.environ.get("EVENFLOW_API_KEY")),
        admin=read_key(arguments.admin_key_file, os.environ.get("EVENFLOW_ADMIN_KEY")),
    )


if __name__ == "__main__":
    main()
