"""The operator's routes: config, statistics, step records."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from engine.config_store import ConfigChange, NothingKeptError, StaleGenerationError
from engine.core.config import config_schema
from engine.core.errors import ConfigError
from engine.core.json_text import shown
from engine.core.step_json import step_to_mapping
from engine.server.auth import AdminGuard
from engine.server.change import if_match, read_change, read_judgement, read_object, who_why
from engine.server.errors import ApiError
from engine.server.lease import Lease, lease_seconds
from engine.server.service import Service
from engine.server.stats import summarize

_log = logging.getLogger(__name__)


class AdminRoutes:
    """Everything under /admin.

    Who changes the config and why is said in the headers `x-evenflow-who` and `x-evenflow-why`, as query
    parameters `who` and `why`, or in a body `{"config": {…}, "who": …, "why": …}`; the knobs alone are a
    body too. With `x-evenflow-keep: 1` (`"keep": true`) a change is kept at once. With
    `x-evenflow-lease-s: 120` (`"lease_s": 120`) it is on loan: after so many seconds without a renewal the
    config before it is in force again, whatever became of the program that put it there.

    What is in force already is no change: it makes no generation, and is answered with the one there is.
    """

    def __init__(self, service: Service, guard: AdminGuard) -> None:
        self._service = service
        self._store = service.store
        self._saving = asyncio.Lock()
        self._lease = Lease(lambda *when: asyncio.get_running_loop().call_later(*when), self._end_lease)
        self._ending: asyncio.Task[None] | None = None
        router = self.router = APIRouter(prefix="/admin", dependencies=[Depends(guard)])
        router.get("/config")(self.read_config)
        router.put("/config")(self.put_config)
        router.patch("/config")(self.patch_config)
        router.post("/config/lease")(self.renew_lease)
        router.post("/config/rollback")(self.rollback)
        router.post("/config/verdict")(self.judge)
        router.get("/config/history")(self.history)
        router.get("/stats")(self.stats)
        router.get("/steps")(self.steps)
        router.get("/requests")(self.requests)

    async def read_config(self) -> JSONResponse:
        """The config in force, its generation, and the schema of the knobs."""
        return _config_response(self._store.current, schema=config_schema())

    async def put_config(self, request: Request) -> JSONResponse:
        """Replaces the config; knobs that are not named take their defaults. An empty one is refused: whoever
        sends it has hardly meant to reset every knob.
        """
        return await self._change(request, onto_current=False)

    async def patch_config(self, request: Request) -> JSONResponse:
        """Changes the named knobs."""
        return await self._change(request, onto_current=True)

    async def renew_lease(self, request: Request) -> JSONResponse:
        """Starts the countdown of a config on loan again: `{"generation": N, "lease_s": 120}`."""
        body = await read_object(request)
        current, seconds = self._store.current, lease_seconds(body.get("lease_s"))
        if not current.leased or body.get("generation") != current.generation:
            held = "on loan" if current.leased else "not on loan"
            message = f"generation {current.generation} is in force, {held}; there is no other to renew"
            raise ApiError(409, message, code="not_leased")
        self._lease.renew(seconds)
        return JSONResponse({"generation": current.generation, "lease_s": seconds})

    async def rollback(self, request: Request) -> JSONResponse:
        """Puts the config that was kept last before the current one back, as a new generation."""
        body = await read_object(request)
        who, why = who_why(request, body)
        try:
            change = self._store.rollback(if_match(request, required=False), who, why)
        except StaleGenerationError as error:
            raise self._stale(error) from None
        except NothingKeptError as error:
            raise ApiError(409, str(error), code="nothing_kept") from None
        return await self._apply(change)

    async def judge(self, request: Request) -> JSONResponse:
        """Writes down what became of a generation: `{"generation": N, "verdict": "kept"}`. A kept one is
        what a rollback goes back to and what a restart starts from.
        """
        generation, verdict = read_judgement(await read_object(request))
        try:
            change = self._store.judge(generation, verdict)
        except KeyError:
            message = f"there is no generation {shown(generation)} in the history"
            raise ApiError(404, message, code="no_such_generation") from None
        await self._save()
        return JSONResponse(change.to_mapping())

    async def history(self) -> dict[str, Any]:
        """Every generation that is remembered, oldest first."""
        return {"history": [change.to_mapping() for change in self._store.history]}

    async def stats(
        self,
        window_s: float = Query(60.0, gt=0, le=86400),
        slo_pause_s: float | None = Query(None, gt=0),
    ) -> dict[str, Any]:
        """What is inside now, and what ended within the window."""
        service = self._service
        now_s, occupancy = service.engine.clock(), service.engine.occupancy
        costs = service.engine.costs
        # On a worker thread: summing thousands up here would hold up every stream.
        ended, refused = service.ended.snapshot(), service.refused.snapshot()
        summary = await asyncio.to_thread(summarize, ended, refused, now_s - window_s, slo_pause_s)
        return {
            "window_s": window_s,
            "generation": service.generation,
            "running": occupancy.num_running,
            "waiting": occupancy.num_waiting,
            "waiting_prefill_tokens": occupancy.waiting_prefill_tokens,
            "kv_tokens": occupancy.kv_tokens,
            "kv_used_tokens": occupancy.kv_used_tokens,
            "prefix_cache": dataclasses.asdict(occupancy.prefix_cache),
            "state": service.engine.state.value,
            "costs": dataclasses.asdict(costs) if costs else None,
            "last_step_seq": service.steps.last_seq,
            "last_request_seq": service.ended.last_seq,
            "streaming": self._streaming(now_s),
        } | summary

    async def steps(self, after: int = Query(0, ge=0), limit: int = Query(8192, ge=1, le=65536)) -> Response:
        """Step records newer than number `after`, one JSON object a line; `x-next-after` continues."""
        entries = self._service.steps.after(after)[:limit]
        return await _ndjson((step_to_mapping(record, seq) for seq, record in entries), _last(entries, after))

    async def requests(
        self, after: int = Query(0, ge=0), limit: int = Query(8192, ge=1, le=65536)
    ) -> Response:
        """Ended requests newer than number `after`, one JSON object a line; `x-next-after` continues."""
        entries = self._service.ended.after(after)[:limit]
        rows = ({"seq": seq} | ended.to_mapping() for seq, ended in entries)
        return await _ndjson(rows, _last(entries, after))

    # -- inside --------------------------------------------------------------------------------------

    def _streaming(self, now_s: float) -> dict[str, Any]:
        """Pauses of streams that have not ended: the longest so far, and the longest that is open now."""
        streams = [s for s in self._service.streams.values() if s.last_token_at_s is not None]
        return {
            "n": len(streams),
            "worst_pause_s": max((s.worst_pause_s for s in streams), default=None),
            "open_pause_s": max((now_s - (s.last_token_at_s or now_s) for s in streams), default=None),
        }

    async def _change(self, request: Request, onto_current: bool) -> JSONResponse:
        wanted = await read_change(request)
        if not wanted.values and not onto_current:
            message = "PUT wants the whole config, as GET /admin/config gives it; PATCH changes part of it"
            raise ApiError(400, message, code="empty_config")
        try:
            change = self._store.replace(
                wanted.values, wanted.generation, wanted.who, wanted.why,
                onto_current=onto_current, keep=wanted.keep, leased=wanted.lease_s is not None,
            )  # fmt: skip
        except StaleGenerationError as error:
            raise self._stale(error) from None
        except ConfigError as error:
            details = {"problems": list(error.problems)}
            raise ApiError(422, str(error), code="invalid_config", details=details) from None
        return await self._apply(change, wanted.lease_s)

    def _end_lease(self) -> None:
        change = self._store.end_lease()
        if change is not None:
            _log.warning("%s; back to the config before it, as generation %d", change.why, change.generation)
            self._service.apply_config()
            self._ending = asyncio.get_running_loop().create_task(self._save())

    async def _apply(self, change: ConfigChange, lease_s: float | None = None) -> JSONResponse:
        if not change.leased:
            self._lease.cancel()
        elif lease_s is not None:
            self._lease.renew(lease_s)
        self._service.apply_config()
        await self._save()
        return _config_response(change)

    async def _save(self) -> None:
        """Writes the state down; a full disk must not undo a change that is in force already."""
        async with self._saving:
            try:
                await asyncio.to_thread(self._store.save)
            except OSError as error:
                _log.warning("the config state could not be saved: %s", error)

    def _stale(self, error: StaleGenerationError) -> ApiError:
        headers = {"ETag": f'"{self._store.current.generation}"'}
        return ApiError(412, str(error), code="stale_generation", headers=headers)


def _config_response(change: ConfigChange, **more: Any) -> JSONResponse:
    content = {"generation": change.generation, "config": change.config.to_mapping(), **more}
    return JSONResponse(content, headers={"ETag": f'"{change.generation}"'})


def _last(entries: list[tuple[int, Any]], after: int) -> int:
    return entries[-1][0] if entries else after


async def _ndjson(rows: Iterator[dict[str, Any]], next_after: int) -> Response:
    text = await asyncio.to_thread(lambda: "".join(json.dumps(row) + "\n" for row in rows))
    return Response(text, media_type="application/x-ndjson", headers={"x-next-after": str(next_after)})
