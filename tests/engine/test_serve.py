from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from engine.config_store import ConfigStore
from engine.serve import ServeOptions, StartError, bind, ready_lines, serve
from engine.server.app import AppOptions
from engine.server.service import Service
from engine.sim_backend import SIM_MODEL
from tests.engine.fakes import FakeBackend


class Unstartable(Service):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_a_web_server_that_does_not_start_ends_with_one_line() -> None:
    service = Unstartable(FakeBackend(), ConfigStore())
    interval_s = sys.getswitchinterval()
    with bind("127.0.0.1", 0) as listener, pytest.raises(StartError, match="the web server did not start"):
        asyncio.run(serve(service, listener, AppOptions(), ServeOptions(log_level="critical")))
    sys.setswitchinterval(interval_s)


def test_a_model_that_cannot_batch_is_announced_with_what_that_means() -> None:
    assert "\n" not in ready_lines("http://x", "sim", SIM_MODEL)
    _, note = ready_lines("http://x", "sim", replace(SIM_MODEL, batches=False)).splitlines()
    assert "n times as long" in note
