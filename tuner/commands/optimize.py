"""The `tuner optimize` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from tuner.commands.again import command_again
from tuner.commands.apply import put_winner
from tuner.errors import EXIT_NO_CONFIG, UsageError
from tuner.joining import Joined
from tuner.optimize import optimize
from tuner.paths import locate_database
from tuner.preflight import Options, Wanted
from tuner.reporting.findings import no_config_line
from tuner.reporting.report import to_json, to_text, verdict_lines
from tuner.reporting.terminal import TerminalAnnouncer
from tuner.server.engine_client import Keys


def run(arguments: argparse.Namespace, keys: Keys) -> int:
    """Finds a config and prints it. Raises: TunerError, UsageError, Interrupted."""
    if arguments.apply and not arguments.engine:
        raise UsageError("--apply needs --engine: the server to put the winner on")
    wanted = _wanted(arguments)
    options = Options(
        location=locate_database(arguments.db),
        num_trials=arguments.trials,
        keys=keys,
        num_simulated=arguments.simulate,
        selftest=not arguments.no_selftest,
        workers=arguments.workers,
        fresh=arguments.fresh,
    )
    console = Console(stderr=True)
    with TerminalAnnouncer(console) as announcer:
        found = optimize(wanted, options, announcer)
    if isinstance(found, Joined):
        return _print_joined(found, arguments.json)
    subject, result = found
    if arguments.json:
        _print_json(to_json(subject, result))
    else:
        print(to_text(subject, result, wanted.engine, arguments.db))
    if result.winner is None:
        return EXIT_NO_CONFIG
    if arguments.apply:
        console.print(put_winner(options.location, subject.study, arguments.engine, keys), highlight=False)
    return 0


def _print_joined(found: Joined, as_json: bool) -> int:
    """The verdict is the leader's; here it is repeated."""
    if as_json:
        _print_json(found.result)
    else:
        print("\n".join(verdict_lines(found.result)))
    return 0 if found.result.get("winner") else EXIT_NO_CONFIG


def _print_json(result: Mapping[str, Any]) -> None:
    """The object; and for people, whom it says little, why nothing was found."""
    print(json.dumps(result, allow_nan=False))
    if not result.get("winner"):
        print(f"tuner: {no_config_line(result)}", file=sys.stderr)


def _wanted(arguments: argparse.Namespace) -> Wanted:
    return Wanted(
        slo_pause_s=arguments.slo_pause,
        budget_s=arguments.budget,
        profile=arguments.profile,
        replay=arguments.replay,
        engine=arguments.engine.rstrip("/").removesuffix("/v1") if arguments.engine else None,
        model=arguments.model,
        backend=arguments.backend,
        seed=arguments.seed,
        name=arguments.study,
        command=command_again(arguments),
    )
