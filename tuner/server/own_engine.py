"""An engine of our own: started on a free port, stopped at the end."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from loadtests.scratch import scratch_folder
from tuner.errors import EngineError

_STOP_WITHIN_S = 15.0
_PREFIX = "evenflow-engine-"


class OwnEngine:
    """A child process that serves a model on loopback. Announced engines end when their standard input
    does, so it ends with this process, SIGKILL included.

    Args:
        arguments: for `engine serve`, besides address and state directory.
        directory: for its state and its log.
    """

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self._arguments = arguments
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it and waits until it serves.

        Raises:
            EngineError: it ended before it was ready; says its own last words.
        """
        port = self.url.rpartition(":")[2] or "0"  # after a crash, the port that clients know
        command = [sys.executable, "-c", "from engine.cli import main; main()", "serve", *self._arguments]
        command += ["--port", port, "--announce", "--grace-s", "1", "--state-dir", str(self._directory)]
        with self._log.open("ab") as log:
            # A session of its own keeps a terminal's Ctrl-C from it: we stop it when we are done with it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        try:
            self.url = self._read_announcement()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends it; does nothing when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """A fresh process after a crash, at the same address. Raises: EngineError."""
        self.stop()
        self.start()

    @property
    def _log(self) -> Path:
        return self._directory / "engine.log"

    def _read_announcement(self) -> str:
        """Printed once the model is loaded, which may include fetching it: no time limit."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return str(json.loads(line)["url"])
        raise self._ended()

    def _ended(self) -> EngineError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = lines[-1].strip() if lines else "it said nothing"
        return EngineError(f"the engine did not start: {words.removeprefix('engine: ')}")


@contextlib.contextmanager
def own_engine(arguments: list[str]) -> Iterator[OwnEngine]:
    """An engine that serves while the block runs.

    Raises:
        EngineError: it cannot be started.
    """
    with scratch_folder(_PREFIX) as directory:
        engine = OwnEngine(arguments, directory)
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()
