"""An engine's admin routes in memory, behind httpx's transport."""

from __future__ import annotations

import json
from typing import Any

import httpx

from engine.core.config import SchedulerConfig, parse_config
from tuner.server.engine_client import EngineClient


class FakeEngine(httpx.BaseTransport):
    """Implements the config routes with generations and If-Match, and plays back ended requests.

    Attributes:
        configs: by generation - 1.
        kept: generations a rollback goes back to.
        leased, renewed: generations that were put on loan, and whose loan was made longer.
        ended: what `/admin/requests` has to tell; filled by `stream`.
        meddle_at: before the request with this number, somebody else changes the config.
    """

    def __init__(self, config: SchedulerConfig | None = None, meddle_at: int | None = None) -> None:
        self.configs = [config or SchedulerConfig()]
        self.kept = [1]
        self.leased: list[int] = []
        self.renewed: list[int] = []
        self.authors = ["engine"]
        self.ended: list[dict[str, Any]] = []
        self.upcoming: list[tuple[float | None, bool]] = []
        self.meddle_at = meddle_at
        self.num_requests = 0

    @property
    def generation(self) -> int:
        return len(self.configs)

    @property
    def config(self) -> SchedulerConfig:
        return self.configs[-1]

    def client(self) -> EngineClient:
        return EngineClient("http://engine", transport=self)

    def meddle(self) -> None:
        """Somebody else's change."""
        self._add(SchedulerConfig(max_running_requests=99), "somebody")

    def end_lease(self) -> None:
        """Nobody has asked for the config on loan any more."""
        owned = max(g for g in range(1, self.generation + 1) if g not in self.leased)
        self._add(self.configs[owned - 1], "engine")

    def _add(self, config: SchedulerConfig, who: str) -> None:
        self.configs.append(config)
        self.authors.append(who)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.num_requests += 1
        if self.num_requests == self.meddle_at:
            self.meddle()
        return self._route(request, request.method + " " + request.url.path)

    def _route(self, request: httpx.Request, route: str) -> httpx.Response:
        match route:
            case "GET /admin/config":
                return self._config()
            case "PUT /admin/config":
                return self._put(request)
            case "POST /admin/config/lease":
                return self._renew(**json.loads(request.content))
            case "POST /admin/config/rollback":
                return self._roll_back(request)
            case "POST /admin/config/verdict":
                return self._keep(json.loads(request.content)["generation"])
            case "GET /admin/config/history":
                return httpx.Response(200, json={"history": self._history()})
            case "GET /admin/stats":
                last = len(self.ended)
                return httpx.Response(200, json={"generation": self.generation, "last_request_seq": last})
            case "GET /admin/requests":
                return self._requests(int(request.url.params["after"]))
        return httpx.Response(404)

    def _config(self) -> httpx.Response:
        body = {"generation": self.generation, "config": self.config.to_mapping()}
        return httpx.Response(200, json=body)

    def _history(self) -> list[dict[str, Any]]:
        return [
            {
                "generation": generation,
                "config": config.to_mapping(),
                "who": who,
                "why": "lunch",
                "verdict": "kept" if generation in self.kept else "pending",
                "leased": generation in self.leased,
            }
            for generation, (config, who) in enumerate(zip(self.configs, self.authors, strict=True), 1)
        ]

    def _is_stale(self, request: httpx.Request) -> bool:
        return request.headers.get("if-match") not in (None, f'"{self.generation}"')

    def _put(self, request: httpx.Request) -> httpx.Response:
        if self._is_stale(request):
            return httpx.Response(412)
        config = parse_config(json.loads(request.content))
        if config != self.config or self.generation in self.leased or "x-evenflow-lease-s" in request.headers:
            self._add(config, request.headers["x-evenflow-who"])
        if request.headers.get("x-evenflow-keep") == "1":
            self.kept.append(self.generation)
        if "x-evenflow-lease-s" in request.headers:
            self.leased.append(self.generation)
        return self._config()

    def _renew(self, generation: int, lease_s: float) -> httpx.Response:
        """A loan of less than a second is over at once."""
        if generation != self.generation or generation not in self.leased:
            return httpx.Response(409)
        self.renewed.append(generation)
        if lease_s < 1.0:
            self.end_lease()
        return httpx.Response(200, json={})

    def _keep(self, generation: int) -> httpx.Response:
        self.kept.append(generation)
        self.leased = [leased for leased in self.leased if leased != generation]
        return httpx.Response(200, json={})

    def _roll_back(self, request: httpx.Request) -> httpx.Response:
        if self._is_stale(request):
            return httpx.Response(412)
        before = max(kept for kept in self.kept if kept < self.generation)
        self._add(self.configs[before - 1], request.headers["x-evenflow-who"])
        return self._config()

    def _requests(self, after: int) -> httpx.Response:
        """One more stream of `upcoming` has ended at each call."""
        if self.upcoming:
            pause, whole = self.upcoming.pop(0)
            generation = self.generation if whole else self.generation - 1
            entry = {"generation": generation, "last_generation": self.generation, "worst_pause_s": pause}
            self.ended.append(entry | {"seq": len(self.ended) + 1})
        lines = [json.dumps(entry) for entry in self.ended if entry["seq"] > after]
        return httpx.Response(200, text="\n".join(lines))
