"""The application: every route over one service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.admin import AdminRoutes
from engine.server.auth import AdminGuard, KeyGuard
from engine.server.completions import ModelRoutes
from engine.server.errors import add_error_handlers, error_response, field_error, identify
from engine.server.service import Service
from engine.server.sse import KEEP_ALIVE_S

_PROBED_BY = ["GET", "HEAD"]  # load balancers ask for the head


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """How the outside is set up.

    Attributes:
        api_keys, admin_keys: empty means none are wanted.
        model_ids: names that mean the served model, beside its own.
    """

    api_keys: Sequence[str] = ()
    admin_keys: Sequence[str] = ()
    model_ids: Sequence[str] = ()
    keep_alive_s: float = KEEP_ALIVE_S


def create_app(service: Service, options: AppOptions | None = None) -> FastAPI:
    """The app; its lifespan starts the engine thread and ends it."""
    options = options or AppOptions()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.close()

    app = FastAPI(title="Evenflow engine", lifespan=lifespan, redirect_slashes=False)
    app.state.service = service
    app.add_middleware(_Identified)
    add_error_handlers(app)
    app.add_exception_handler(RequestValidationError, _on_bad_query)
    guard = KeyGuard(options.api_keys)
    app.include_router(ModelRoutes(service, guard, options.model_ids, options.keep_alive_s).router)
    app.include_router(AdminRoutes(service, AdminGuard(options.admin_keys)).router)
    _add_probes(app, service)
    return app


class _Identified:
    """Gives every answer the headers of `identify` that it does not have yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in identify(Request(scope), f"req-{uuid.uuid4().hex}").items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, identified if scope["type"] == "http" else send)


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.api_route("/health", methods=_PROBED_BY)
    async def health() -> JSONResponse:
        """200 while the engine thread lives, or may come back."""
        state = {"status": "ok" if service.is_alive else "dead", "engine": service.engine.state.value}
        return JSONResponse(state, 200 if service.is_alive else 503)

    @app.api_route("/ready", methods=_PROBED_BY)
    async def ready() -> JSONResponse:
        """200 once the model is loaded and warm, until the server stops."""
        return JSONResponse({"engine": service.engine.state.value}, 200 if service.is_ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(await asyncio.to_thread(service.metrics.text), media_type=CONTENT_TYPE_LATEST)


async def _on_bad_query(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return error_response(field_error(str(first["loc"][-1]), first["msg"]))
