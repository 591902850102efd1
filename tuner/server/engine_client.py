"""Talking to an engine's admin routes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from engine.core.config import SchedulerConfig, parse_config
from engine.core.errors import ConfigError
from engine.core.events import StepRecord
from engine.core.json_text import parse_json
from engine.core.step_json import step_from_mapping
from tuner.errors import EngineError, StaleConfigError
from tuner.server.served_model import context_tokens_of

DEFAULT_URL = "http://127.0.0.1:8080"
_TIMEOUT_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Keys:
    """Secrets of a server; None where it has none."""

    api: str | None = None
    admin: str | None = None


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """A config in force."""

    generation: int
    config: SchedulerConfig


class EngineClient:
    """One engine, spoken to from one thread.

    Args:
        who: the name under which changes appear in the engine's history.
    """

    def __init__(
        self,
        url: str,
        keys: Keys = Keys(),
        who: str = "tuner",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.keys = keys
        self._who = who
        self._http = httpx.Client(timeout=_TIMEOUT_S, transport=transport, follow_redirects=False)

    def close(self) -> None:
        self._http.close()

    def check(self) -> None:
        """Makes sure that an engine of ours answers here.

        Raises:
            EngineError: nobody, somebody else, or not without the right key.
        """
        health = self._send("GET", "/health")
        if health.status_code != 200:
            raise EngineError(f"{self.url} is not an Evenflow engine: /health answered {health.status_code}")
        ready = self._send("GET", "/ready")
        if ready.status_code != 200:
            raise EngineError(
                f"{self.url} is not ready ({_message(ready)}); wait until it has loaded its model"
            )
        self.config()

    def config(self) -> LiveConfig:
        """The config in force. Raises: EngineError."""
        answer = self._send("GET", "/admin/config")
        self._check_key(answer)
        body = _json(answer)
        if answer.status_code != 200 or not isinstance(body, dict) or "generation" not in body:
            raise EngineError(
                f"{self.url} is not an Evenflow engine: /admin/config answered {answer.status_code}"
            )
        return self._live_config(body)

    def put_config(
        self,
        config: SchedulerConfig,
        if_generation: int,
        why: str,
        *,
        keep: bool = False,
        lease_s: float | None = None,
    ) -> LiveConfig:
        """Puts the whole config in force, at the engine's next step.

        Args:
            keep: it survives a restart, and is what a later rollback goes back to.
            lease_s: the engine goes back to the config before it after this time, unless it is renewed.

        Raises:
            StaleConfigError: the config in force is not generation `if_generation`.
            EngineError: it was refused.
        """
        headers = {"If-Match": f'"{if_generation}"', **self._signed(why)}
        if keep:
            headers["x-evenflow-keep"] = "1"
        if lease_s is not None:
            headers["x-evenflow-lease-s"] = f"{lease_s:g}"
        return self._changed(self._send("PUT", "/admin/config", json=config.to_mapping(), headers=headers))

    def renew_lease(self, generation: int, lease_s: float) -> bool:
        """Whether the generation is still in force on loan, for so many seconds more. Raises: EngineError."""
        body = {"generation": generation, "lease_s": lease_s}
        return self._send("POST", "/admin/config/lease", json=body).status_code == 200

    def roll_back(self, if_generation: int | None, why: str) -> LiveConfig:
        """Puts the last kept config in force. Raises: StaleConfigError, EngineError."""
        match = {} if if_generation is None else {"If-Match": f'"{if_generation}"'}
        headers = {**match, **self._signed(why)}
        return self._changed(self._send("POST", "/admin/config/rollback", headers=headers))

    def keep(self, generation: int) -> None:
        """Writes down that the generation has stood the test. Raises: EngineError."""
        body = {"generation": generation, "verdict": "kept"}
        answer = self._send("POST", "/admin/config/verdict", json=body)
        if answer.status_code != 200:
            raise EngineError(f"{self.url} did not keep generation {generation}: {_message(answer)}")

    def settled_config(self) -> LiveConfig:
        """The config in force; when that is on loan, as a run that was killed leaves it behind, the config
        before it, with the generation in force. Raises: EngineError.
        """
        now = self.config()
        changes = reversed(self.history())
        settled = next((change for change in changes if not change.get("leased")), None)
        config = settled.get("config") if settled else None
        return now if config is None else self._live_config({"generation": now.generation, "config": config})

    def history(self) -> list[dict[str, Any]]:
        """Who changed the config, oldest first. Raises: EngineError."""
        answer = self._send("GET", "/admin/config/history")
        self._check_key(answer)
        body = _json(answer)
        entries = body.get("history", []) if isinstance(body, dict) else body
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    def stats(self, window_s: float) -> dict[str, Any]:
        """What is inside now, and what ended within the window. Raises: EngineError."""
        answer = self._send("GET", "/admin/stats", params={"window_s": window_s})
        self._check_key(answer)
        body = _json(answer)
        if answer.status_code != 200 or not isinstance(body, dict):
            raise EngineError(f"{self.url}/admin/stats answered {answer.status_code}")
        return body

    def ended_requests(self, after: int) -> list[dict[str, Any]]:
        """Requests that ended since number `after`, oldest first. Raises: EngineError."""
        return self._lines("/admin/requests", after)

    def steps(self, after: int) -> list[tuple[int, StepRecord]]:
        """Numbered step records newer than `after`. Raises: EngineError."""
        return [
            (int(values["seq"]), step_from_mapping(values)) for values in self._lines("/admin/steps", after)
        ]

    def _lines(self, path: str, after: int) -> list[dict[str, Any]]:
        answer = self._send("GET", path, params={"after": after})
        self._check_key(answer)
        if answer.status_code != 200:
            raise EngineError(f"{self.url}{path} answered {answer.status_code}")
        try:
            return [parse_json(line) for line in answer.text.splitlines() if line.strip()]
        except ValueError as error:
            raise EngineError(f"{self.url}{path} answered what is not JSON: {error}") from error

    def model(self) -> tuple[str, int | None]:
        """The served model's name, and its context in tokens if the engine says so. Raises: EngineError."""
        entry = self.model_entry()
        return str(entry["id"]), context_tokens_of(entry)

    def model_entry(self) -> Mapping[str, Any]:
        """The served model's entry in `GET /v1/models`. Raises: EngineError."""
        answer = self._send("GET", "/v1/models")
        self._check_key(answer)
        body = _json(answer)
        try:
            entry: Mapping[str, Any] = body["data"][0]
            entry["id"]
        except (TypeError, KeyError, IndexError):
            raise EngineError(f"{self.url}/v1/models names no model") from None
        return entry

    def ask(self, prompt: str, max_tokens: int) -> None:
        """Sends one prompt and waits for its whole answer. Raises: EngineError."""
        name, _ = self.model()
        body = {
            "model": name, "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens, "min_tokens": max_tokens, "ignore_eos": True, "temperature": 0,
        }  # fmt: skip
        answer = self._send("POST", "/v1/chat/completions", json=body, timeout=600.0)
        if answer.status_code != 200:
            raise EngineError(f"{self.url} refused a probe: {_message(answer)}")

    def wait_idle(self, within_s: float) -> bool:
        """Waits until nothing runs or waits; whether that came about in time. Raises: EngineError."""
        for _ in range(max(1, int(within_s / _POLL_S))):
            stats = self.stats(1.0)
            if not stats.get("running") and not stats.get("waiting"):
                return True
            time.sleep(_POLL_S)
        return False

    # -- inside ----------------------------------------------------------------------------------------

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        admin = path.startswith("/admin")
        key = (self.keys.admin or self.keys.api) if admin else self.keys.api
        headers = dict(options.pop("headers", {}))
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            return self._http.request(method, self.url + path, headers=headers, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise EngineError(f"no engine answers at {self.url}: {reason}") from error

    def _signed(self, why: str) -> dict[str, str]:
        plain = why.encode("ascii", "replace").decode()
        return {"x-evenflow-who": self._who, "x-evenflow-why": plain}

    def _changed(self, answer: httpx.Response) -> LiveConfig:
        self._check_key(answer)
        if answer.status_code == 412:
            raise StaleConfigError(f"the config of {self.url} was changed by {self._last_author()}")
        body = _json(answer)
        if answer.status_code not in (200, 202) or not isinstance(body, dict):
            raise EngineError(f"{self.url} left its config as it is: {_message(answer)}")
        return self._live_config(body)

    def last_author(self) -> str:
        """Who made the latest change. Raises: EngineError."""
        history = self.history()
        return str(history[-1].get("who")) if history else ""

    def _last_author(self) -> str:
        with contextlib.suppress(EngineError):
            if history := self.history():
                last = history[-1]
                why = f" ({last['why']})" if last.get("why") else ""
                return f"{last.get('who') or 'somebody'}{why}, now generation {last.get('generation')}"
        return "somebody else"

    def _live_config(self, body: Mapping[str, Any]) -> LiveConfig:
        try:
            return LiveConfig(int(body["generation"]), parse_config(body["config"]))
        except (KeyError, TypeError, ValueError, OverflowError, ConfigError) as error:
            raise EngineError(f"{self.url} speaks another version of Evenflow: {error}") from error

    def _check_key(self, answer: httpx.Response) -> None:
        if answer.status_code in (401, 403):
            raise EngineError(
                f"{self.url} wants a key: {_message(answer)}; give --api-key-file or --admin-key-file"
            )


def _json(answer: httpx.Response) -> Any:
    try:
        return parse_json(answer.content)
    except ValueError:
        return None


def _message(answer: httpx.Response) -> str:
    body = _json(answer)
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    return f"HTTP {answer.status_code}"
