"""The routes, and what holds for all of them: tokens, limits, one error shape, a log line."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from rl_service.common.errors import BundleError, RegistryError, RLServiceError
from rl_service.serving.documentation import DOCS_PAGE, openapi_document
from rl_service.serving.page import OPEN_PATHS, Handler, Page
from rl_service.serving.refusals import RequestError, code_of, error_body
from rl_service.serving.security import Tokens
from rl_service.serving.service import Reply, Service
from rl_service.serving.shared import ServingMetrics, Shared, SharedUnavailable, merged

_logger = logging.getLogger("rl_service.serving")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_JSON, _METRICS = "application/json", "text/plain; version=0.0.4; charset=utf-8"
_OPEN_PATHS = ("/healthz", "/readyz", "/docs", *OPEN_PATHS)
"""No token is needed for them, and they are answered however busy the replica is."""
_READY_TIMEOUT_S = 2.0
_BUSY_RETRY_S = 1
_HTML_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'",
}


class Api:
    """The HTTP side of one replica.

    Args:
        service: what answers.
        page: what people look at.
        shared: where the replicas' metrics meet.
        tokens: who may ask.
        metrics: of this replica.
        replica: its name, a label of its metrics.
    """

    def __init__(
        self,
        service: Service,
        page: Page,
        shared: Shared,
        tokens: Tokens,
        metrics: ServingMetrics,
        replica: str,
    ) -> None:
        self._service, self._page = service, page
        self._shared, self._tokens = shared, tokens
        self._metrics, self._replica = metrics, replica
        self._ongoing = 0

    def build(self) -> FastAPI:
        """The application. The document at /openapi.json is ours: it knows the policies."""
        service, sessions = self._service, self._service.sessions
        handlers: dict[str, Handler] = {
            "POST /v1/policies/{name}/act": lambda request: service.act(
                request.path_params["name"], request.state.body
            ),
            "POST /v1/sessions/{session}/act": lambda request: sessions.act(
                request.path_params["session"], request.state.body, request.state.request_id
            ),
            "POST /v1/sessions": lambda request: sessions.open(request.state.body),
            "DELETE /v1/sessions/{session}": lambda request: sessions.close(
                request.path_params["session"]
            ),
            "GET /v1/policies": lambda _: service.list_policies(),
            "GET /v1/policies/{name}": lambda request: service.describe(
                request.path_params["name"]
            ),
            "GET /metrics": self._metrics_page,
            "GET /openapi.json": self._openapi,
            "GET /healthz": self._healthz,
            "GET /readyz": self._readyz,
            "GET /docs": lambda _: _docs_page(),
            **self._page.handlers(),
        }
        return FastAPI(
            openapi_url=None,
            redirect_slashes=False,
            routes=[
                route for key, handler in handlers.items() for route in self._routes(key, handler)
            ],
            exception_handlers={HTTPException: self._no_route},
        )

    def _routes(self, key: str, handler: Handler) -> list[Route]:
        """The route, and the same with a slash at its end."""
        method, path = key.split()
        is_open = path in _OPEN_PATHS
        latency = self._metrics.latency.labels(path)

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            request_id = request.state.request_id = _request_id(request)
            fields: dict[str, Any] = {"request_id": request_id, "method": method, "route": path}
            try:
                if is_open:
                    answer = await handler(request)
                else:
                    self._check_token(request, fields)
                    request.state.body = await self._body(request) if method == "POST" else b""
                    with self._counted():
                        answer = await handler(request)
                response = self._response(answer, request_id, fields)
            except Exception as error:
                response = self._refusal(error, request_id, fields)
            seconds = time.perf_counter() - started
            latency.observe(seconds)
            status = str(response.status_code)
            self._metrics.requests.labels(path, fields.get("policy", ""), status).inc()
            fields |= {"status": response.status_code, "ms": round(1e3 * seconds, 2)}
            _logger.info("request", extra={"fields": fields})
            return response

        return [Route(each, endpoint, methods=[method]) for each in {path, f"{path.rstrip('/')}/"}]

    def _check_token(self, request: Request, fields: dict[str, Any]) -> None:
        if self._tokens.required:
            name = self._tokens.name_of(request.headers.get("authorization", ""))
            if name is None:
                raise RequestError(
                    401,
                    "unauthorized",
                    "this service needs a token; send the header Authorization: Bearer TOKEN",
                )
            fields["token"] = name

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """For a request that has arrived. Raises RequestError if there is too much to do."""
        if self._ongoing >= self._service.limits.max_ongoing_requests:
            raise RequestError(
                503, "busy", "too many requests at once; try again", retry_after_s=_BUSY_RETRY_S
            )
        self._ongoing += 1
        self._metrics.ongoing.set(self._ongoing)
        try:
            yield
        finally:
            self._ongoing -= 1
            self._metrics.ongoing.set(self._ongoing)

    def _response(
        self, answer: Reply | Response, request_id: str, fields: dict[str, Any]
    ) -> Response:
        if isinstance(answer, Response):
            return answer
        fields |= {key: answer[key] for key in ("policy", "version") if key in answer}
        answer["request_id"] = request_id
        return _json_response(json.dumps(answer, allow_nan=False).encode(), 200)

    def _refusal(self, error: Exception, request_id: str, fields: dict[str, Any]) -> Response:
        """The reply to a request that cannot be answered; only our own faults are 500."""
        if isinstance(error, ClientDisconnect):
            error = RequestError(400, "client_gone", "the request ended before its body did")
        if isinstance(error, SharedUnavailable):
            error = RequestError(
                503, "sessions_unavailable", "sessions are restarting; try again", _BUSY_RETRY_S
            )
        if isinstance(error, RegistryError | BundleError):
            error = RequestError(503, "version_unavailable", str(error), _BUSY_RETRY_S)
        if not isinstance(error, RequestError):
            _logger.error("failed", extra={"fields": fields}, exc_info=error)
            text = str(error) if isinstance(error, RLServiceError) else "see the service's log"
            error = RequestError(500, "internal_error", f"the request failed: {text}")
        fields["code"] = error.code
        self._metrics.errors.labels(error.code).inc()
        body = error_body(error.code, error.message, request_id)
        response = _json_response(body, error.status)
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(error.retry_after_s)
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def _no_route(self, request: Request, error: Exception) -> Response:
        """Unknown paths and methods."""
        assert isinstance(error, HTTPException)
        request_id, code = _request_id(request), code_of(error.status_code)
        self._metrics.errors.labels(code).inc()
        body = error_body(code, f"{error.detail}; the routes are listed at /docs", request_id)
        response = _json_response(body, error.status_code)
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response

    async def _healthz(self, request: Request) -> Reply:
        await self._service.loader.check_health()
        return {"status": "ok"}

    async def _readyz(self, request: Request) -> Reply:
        try:
            is_draining = await asyncio.wait_for(self._shared.is_draining(), _READY_TIMEOUT_S)
        except TimeoutError as error:
            raise SharedUnavailable from error
        if is_draining:
            raise RequestError(503, "draining", "the service is about to stop; ask another one")
        return {"status": "ready"}

    async def _metrics_page(self, request: Request) -> Response:
        own = self._metrics.page()
        try:
            pages, num_sessions = await self._shared.exchange_metrics(self._replica, own)
        except SharedUnavailable:
            pages, num_sessions = {self._replica: own}, None
        return Response(merged(pages, num_sessions), media_type=_METRICS)

    async def _openapi(self, request: Request) -> Response:
        policies = [await versions.stable() for versions in list(self._service.policies.values())]
        document = openapi_document(policies, self._tokens.required)
        return Response(json.dumps(document), media_type=_JSON)

    async def _body(self, request: Request) -> bytes:
        """The JSON text, never more of it than the limit."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != _JSON:
            raise RequestError(
                415, "wrong_content_type", f"send the header Content-Type: {_JSON} and JSON"
            )
        limits = self._service.limits
        chunks, size = [], 0
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limits.max_body_bytes:
                        raise RequestError(
                            413,
                            "body_too_large",
                            f"the body has more than {limits.max_body_bytes} bytes; send less",
                        )
                    chunks.append(chunk)
        except TimeoutError as error:
            raise RequestError(
                408,
                "request_timeout",
                f"the body did not arrive within {limits.body_timeout_s:g} s",
            ) from error
        return b"".join(chunks)


def _request_id(request: Request) -> str:
    """The client's own if it is short printable ASCII, else a new one.

    Serve writes it into the reply's headers.
    """
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


async def _docs_page() -> Response:
    return Response(DOCS_PAGE, media_type="text/html", headers=_HTML_HEADERS)


def _json_response(body: bytes, status: int) -> Response:
    return Response(body, status, {"Cache-Control": "no-store"}, _JSON)
