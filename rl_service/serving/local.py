"""The page for this machine's runs: one process without Ray, which nobody else can reach."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware

from custom_models.text import one_line
from rl_service.common.errors import RLServiceError
from rl_service.page.library import RunLibrary
from rl_service.page.play import PlayRoom
from rl_service.policies.locate import ZOO
from rl_service.policies.registry import PolicyRegistry
from rl_service.runtime.machine import LOOPBACK
from rl_service.runtime.process import prepare_process
from rl_service.serving.api import Api
from rl_service.serving.inputs import Limits
from rl_service.serving.page import Page
from rl_service.serving.security import Tokens
from rl_service.serving.service import Service
from rl_service.serving.shared import ServingMetrics, SharedState
from rl_service.serving.sources import RegistrySource, find_sources

EXAMPLE = f"example-lunarlander={ZOO}:lunarlander"
"""Something to look at before the first training has ended."""
_WATCH_INTERVAL_S = 2.0
_LAST_REPLIES_S = 2
_END_TIMEOUT_S = 10.0

_logger = logging.getLogger("rl_service.serving")


class InProcess:
    """An object's methods, to be awaited as those of an actor are."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> Any:
            return getattr(self._target, method)(*arguments)

        return call


class ReadOnlySource(RegistrySource):
    """Follows the registry, and has no say in it."""

    def give_up(self, version: int, serves: int) -> None:
        pass


@contextlib.contextmanager
def running_page(folder: Path, port: int, allow_modules: Sequence[str]) -> Iterator[str]:
    """Serves the page until the block ends; its address.

    Args:
        folder: output folder of trainings; it need not hold any yet.
        port: of 127.0.0.1; 0 takes a free one.
        allow_modules: modules from which policies may take environments and kinds of models.
    """
    prepare_process(num_threads=1)
    with contextlib.closing(socket.create_server((LOOPBACK, port))) as listener:
        page = _LocalPage(folder, listener, allow_modules)
        # Not in this thread: uvicorn would take the signals, and keep plays until it has ended.
        thread = threading.Thread(target=page.run, daemon=True)
        thread.start()
        page.started.wait()
        if page.error is not None:
            raise page.error
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            page.stop()
            thread.join(_END_TIMEOUT_S)


class _LocalPage:
    """The server, in an event loop of its own."""

    def __init__(self, folder: Path, listener: socket.socket, allow_modules: Sequence[str]) -> None:
        self.started = threading.Event()
        self.error: Exception | None = None
        """Why it did not start."""
        self._folder, self._listener = folder, listener
        self._plays = PlayRoom(allow_modules)
        self._server: uvicorn.Server
        self._loop: asyncio.AbstractEventLoop

    def run(self) -> None:
        """Serves until `stop`."""
        asyncio.run(self._serve())

    def stop(self) -> None:
        """Ends plays first: a request to one may take minutes."""
        ending = asyncio.run_coroutine_threadsafe(self._plays.shutdown(), self._loop)
        with contextlib.suppress(TimeoutError):
            ending.result(_END_TIMEOUT_S)
        self._server.should_exit = True

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            service = await self._prepare()
        except Exception as error:  # raised in the thread that waits
            self.error = error
            self.started.set()
            return
        registry = PolicyRegistry(str(self._folder / "policies"))
        watching = asyncio.create_task(_follow(service, registry))
        self.started.set()
        await self._server.serve([self._listener])
        watching.cancel()

    async def _prepare(self) -> Service:
        limits, metrics = Limits(), ServingMetrics()
        shared = InProcess(SharedState(limits.max_sessions, limits.session_ttl_s))
        service = Service(find_sources([EXAMPLE], None), limits, shared, metrics)
        await service.start()
        page = Page(service, self._plays, RunLibrary(self._folder))
        app = Api(service, page, shared, Tokens(None), metrics, "local").build()
        # Another site whose name is made to point here must not read the runs.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                lifespan="off",
                timeout_graceful_shutdown=_LAST_REPLIES_S,
            )
        )
        return service


async def _follow(service: Service, registry: PolicyRegistry) -> None:
    """Policies that trainings register appear, and move as their aliases do."""
    known: set[str] = set()
    while True:
        try:
            await _add_new(service, registry, known)
            await service.watch_once()
        except Exception as error:  # whatever it is, the page goes on
            _warn_once(one_line(error), known)
        await asyncio.sleep(_WATCH_INTERVAL_S)


async def _add_new(service: Service, registry: PolicyRegistry, known: set[str]) -> None:
    for name in await service.loader.in_thread(registry.names):
        if name in service.policies:
            continue
        try:
            await service.add(ReadOnlySource(name, name, registry))
        except RLServiceError as error:  # it is tried again, and the others come
            _warn_once(f"policy {name} is not shown: {one_line(error)}", known)


def _warn_once(problem: str, known: set[str]) -> None:
    if problem not in known:
        known.add(problem)
        _logger.warning(problem)
