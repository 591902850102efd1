"""A PostgreSQL server of our own on a free port, when its programs are here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S
from tests.ports import free_port

_NOBODY = "nobody"


@contextlib.contextmanager
def temporary_server() -> Iterator[str]:
    """The URL of an empty database. Skips the test when the server's programs, or psycopg, are not here."""
    pytest.importorskip("psycopg")
    initdb, postgres = shutil.which("initdb"), shutil.which("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not installed")
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        os.chmod(directory, 0o755)
        data = Path(directory) / "data"
        data.mkdir()
        as_user = _as_user(data)
        subprocess.run(
            [*as_user, initdb, "-D", data, "-U", "tuner", "-A", "trust", "-N"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        port = free_port()
        options = ["-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", "", "-F"]
        with subprocess.Popen([*as_user, postgres, *options], stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stderr is not None
                assert any("ready to accept connections" in line for line in server.stderr)
                yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
            finally:
                server.send_signal(signal.SIGINT)  # whoever is still connected is cut off
                server.communicate(timeout=DEADLINE_S)


def _as_user(data: Path) -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return []
    shutil.chown(data, _NOBODY)
    return ["setpriv", "--reuid", _NOBODY, "--regid", str(data.stat().st_gid), "--clear-groups"]
