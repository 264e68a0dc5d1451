"""What the page shows besides the policies' answers: its files, runs, model cards, plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Any

import anyio.to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from rl_service import __version__
from rl_service.common.errors import RLServiceError
from rl_service.page.child import PlayError
from rl_service.page.library import RunLibrary
from rl_service.policies.bundle_files import CARD_FILE, MAX_CARD_BYTES, open_file
from rl_service.serving.body_types import Finite
from rl_service.serving.inputs import Body, read_body
from rl_service.serving.refusals import RequestError
from rl_service.serving.service import Reply, Service

Handler = Callable[[Request], Awaitable[Reply | Response]]
OPEN_PATHS = ("/", "/static/{name}")
"""The page itself says nothing of the operator's, so it needs no token."""
_MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; media-src blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_BUSY_RETRY_S = 5


class OpenPlay(Body):
    """`POST /v1/play`."""

    policy: str = Field(min_length=1, max_length=200)
    seed: int | None = None


class Reset(Body):
    """`POST /v1/play/{play}/reset`."""

    seed: int | None = None


class Step(Body):
    """`POST /v1/play/{play}/step`."""

    action: int | list[Finite] | None = None


class Ask(Body):
    """`POST /v1/play/{play}/ask`."""

    observation: list[Finite] = Field(max_length=10_000)


class Page:
    """The routes of the page.

    Args:
        service: the policies.
        plays: a `PlayRoom`, perhaps in another process: where policies act in environments.
        runs: what there is to see of trainings; None: nothing.
    """

    def __init__(self, service: Service, plays: Any, runs: RunLibrary | None) -> None:
        self._service, self._plays, self._runs = service, plays, runs
        folder = files("rl_service.page") / "static"
        self._files = {each.name: each.read_bytes() for each in folder.iterdir()}

    def handlers(self) -> dict[str, Handler]:
        """By method and path."""
        handlers: dict[str, Handler] = {
            "GET /": lambda _: self._file("index.html"),
            "GET /static/{name}": lambda request: self._file(request.path_params["name"]),
            "GET /v1": self._about,
            "GET /v1/policies/{name}/card": self._card,
            # POST: it takes a play, which no other site must be able to do with an image's address.
            "POST /v1/policies/{name}/replay": self._replay,
            "POST /v1/play": self._open,
            "POST /v1/play/{play}/step": partial(self._do, "step", Step),
            "POST /v1/play/{play}/reset": partial(self._do, "reset", Reset),
            "POST /v1/play/{play}/ask": partial(self._do, "ask", Ask),
            "DELETE /v1/play/{play}": self._close,
        }
        return handlers if self._runs is None else handlers | _run_handlers(self._runs)

    async def _file(self, name: str) -> Response:
        media_type = _MEDIA_TYPES.get(name.rpartition(".")[2])
        if name not in self._files or media_type is None:
            raise RequestError(404, "not_found", "the page has no such file")
        return Response(self._files[name], media_type=media_type, headers=_HEADERS)

    async def _about(self, request: Request) -> Reply:
        return {"runs": self._runs is not None, "play": True, "release": __version__}

    async def _card(self, request: Request) -> Reply:
        loaded = await self._service.loaded(request.path_params["name"])
        spec = loaded.policy.spec

        def read() -> tuple[str, list[Any]]:
            with open_file(loaded.source.fetch(loaded.version) / CARD_FILE, MAX_CARD_BYTES) as file:
                card = file.read().decode(errors="replace")
            return card, loaded.source.history()

        card, history = await self._service.loader.in_thread(read)
        return {
            "policy": loaded.name,
            "version": loaded.version,
            "card": card,
            "evaluation": {k: v for k, v in spec.evaluation.items() if v is not None},
            "versions": [
                {
                    "version": each.version,
                    "aliases": list(each.aliases),
                    "episode_return_mean": each.episode_return_mean,
                    "created": each.created_at,
                    "env": each.env,
                    "model": each.model,
                }
                for each in reversed(history)
            ],
        }

    async def _replay(self, request: Request) -> Response:
        loaded = await self._service.loaded(request.path_params["name"])
        bundle = await self._service.loader.in_thread(loaded.source.fetch, loaded.version)
        video = await self._ask("replay", bundle, loaded.source.base_model)
        return Response(video, media_type="video/mp4", headers={"Cache-Control": "no-store"})

    async def _open(self, request: Request) -> Reply:
        asked = read_body(OpenPlay, request.state.body, '{"policy": name}')
        loaded = await self._service.loaded(asked.policy)
        bundle = await self._service.loader.in_thread(loaded.source.fetch, loaded.version)
        state = await self._ask("open", loaded.name, bundle, loaded.source.base_model, asked.seed)
        return dict(state) | {"version": loaded.version}

    async def _do(self, what: str, schema: type[Body], request: Request) -> Reply:
        [field] = schema.model_fields
        asked = read_body(schema, request.state.body, f'{{"{field}": …}}')
        return dict(await self._ask(what, request.path_params["play"], getattr(asked, field)))

    async def _close(self, request: Request) -> Reply:
        await self._ask("close", request.path_params["play"])
        return {}

    async def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return await getattr(self._plays, method)(*arguments)
        except PlayError as error:
            retry_after_s = _BUSY_RETRY_S if error.status == 503 else None
            raise RequestError(error.status, error.code, error.message, retry_after_s) from error


def _run_handlers(runs: RunLibrary) -> dict[str, Handler]:
    async def curves(request: Request) -> Reply:
        query = request.query_params
        points = query.get("points", "400")
        if not (points.isascii() and points.isdigit() and len(points) < 10):
            raise _wrong_query("points is not a number")
        metric, x = query.get("metric", "episode_return_mean"), query.get("x", "steps")
        return await _read(runs.curves, query.getlist("run"), metric, x, int(points))

    return {
        "GET /v1/runs": lambda _: _read(runs.runs),
        "GET /v1/curves": curves,
        "GET /v1/experiments": lambda _: _read(runs.experiments),
        "GET /v1/experiments/{name}": lambda request: _read(
            runs.experiment, request.path_params["name"]
        ),
    }


async def _read(method: Callable[..., Reply], *arguments: Any) -> Reply:
    """What a library says, which reads files to answer."""
    try:
        return await anyio.to_thread.run_sync(method, *arguments)
    except LookupError as error:
        raise RequestError(404, "not_found", str(error)) from error
    except RLServiceError as error:
        raise _wrong_query(str(error)) from error


def _wrong_query(message: str) -> RequestError:
    return RequestError(422, "invalid_request", message)
