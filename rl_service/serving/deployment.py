"""The Ray Serve application: replicas that answer, and one actor for what they share.

`rl-service serve` and `serve deploy deploy/serve.yaml` build it with the same function.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path
from typing import Any

import ray
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, DeploymentActorConfig

from custom_models.kinds import allow_module
from custom_models.text import one_line
from rl_service.common.errors import SettingsError
from rl_service.page.child import PlayError
from rl_service.page.library import RunLibrary
from rl_service.page.play import PlayRoom
from rl_service.runtime.process import prepare_process
from rl_service.runtime.ray_session import ray_log_folder, serve_client
from rl_service.serving.api import Api
from rl_service.serving.inputs import Limits
from rl_service.serving.page import Page
from rl_service.serving.security import TOKENS_VARIABLE, Tokens, is_loopback
from rl_service.serving.service import Service
from rl_service.serving.shared import ServingMetrics, SharedState, SharedUnavailable
from rl_service.serving.sources import find_sources

_SHARED, _PLAYS = "shared", "plays"
_PLAYS_LOST = "the plays have ended, and new ones can be started in a moment; start again"
_WATCH_INTERVAL_S = 1.0
_DRAIN_S = 10.0
_UNLIMITED = 1_000_000
_WAIT_FOR_SHARED_S = 30.0
_BUFFERED_LINES = 200
_FILE_BYTES, _KEPT_FILES = 64 * 2**20, 4
"""A busy service writes this much in an hour; older lines go."""

_logger = logging.getLogger("rl_service.serving")


class Arguments(BaseModel):
    """What an application may be given; an unknown or misspelt key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policies: tuple[str, ...] = Field(min_length=1)
    """`[NAME=]POLICY` each."""
    registry: str | None = None
    base_model: str | None = None
    """Folder of the language model that the policies were trained on, if that is not in the model
    store; on every node that runs a replica."""
    token_file: str | None = None
    """On every node that runs a replica."""
    runs: str | None = None
    """Output folder of trainings, which the page shows; on every node that runs a replica."""
    allow_modules: tuple[str, ...] = ()
    """Modules that models of bundles may be imported from."""
    log_folder: str | None = None
    """For one line a request; None: with Ray's own logs."""
    min_replicas: int = Field(default=1, ge=1)
    max_replicas: int = Field(default=1, ge=1)
    canary: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the requests that a new version takes on trial."""
    num_cpus: float = Field(default=1.0, ge=0.0)
    """Of one replica."""
    num_gpus: float = Field(default=0.0, ge=0.0)
    limits: Limits = Limits()


class _ActorHandle:
    """An object in its actor. After a loss it finds the next one.

    Args:
        name: of the actor.
        lost: makes what to raise as long as there is none.
    """

    def __init__(self, name: str, lost: Callable[[], Exception]) -> None:
        self._name, self._lost = name, lost
        self._actor: Any = None

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> Any:
            try:
                if self._actor is None:
                    self._actor = serve.get_deployment_actor(self._name)
                return await getattr(self._actor, method).remote(*arguments)
            except (RayActorError, ValueError) as error:
                self._actor = None
                raise self._lost() from error

        return call


class PolicyService:
    """One replica.

    Args:
        arguments: of the application.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        given = Arguments.model_validate(arguments)
        prepare_process(num_threads=1)
        for module in given.allow_modules:
            allow_module(module)
        replica = serve.get_replica_context().replica_id.unique_id
        folder = Path(given.log_folder) if given.log_folder else ray_log_folder() / "serve"
        self._log = _log_to(folder / f"requests-{replica}.jsonl")
        self._shared = _ActorHandle(_SHARED, SharedUnavailable)
        plays = _ActorHandle(_PLAYS, partial(PlayError, "unknown_play", 404, _PLAYS_LOST))
        self._metrics, self._replica = ServingMetrics(), replica
        tokens = Tokens(Path(given.token_file) if given.token_file else None)
        _check_exposure(with_tokens=tokens.required)
        self._service = Service(
            find_sources(given.policies, given.registry, given.base_model),
            given.limits,
            self._shared,
            self._metrics,
            given.canary,
        )
        page = Page(self._service, plays, RunLibrary(Path(given.runs)) if given.runs else None)
        self._api = Api(self._service, page, self._shared, tokens, self._metrics, replica)
        self._watching: asyncio.Task[None] | None = None
        self._checked = False

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._api.build()

    async def check_health(self) -> None:
        """Asked by Serve before the first request and every few seconds: a real forward pass."""
        if not self._checked:
            await self._start()
        await self._service.loader.check_health()

    async def drain(self) -> None:
        """From now on `/readyz` says that the service is about to stop."""
        await self._shared.drain()

    async def _start(self) -> None:
        deadline = time.monotonic() + _WAIT_FOR_SHARED_S
        while True:
            try:
                await self._service.start()
                break
            except SharedUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        self._checked = True
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            await self._service.watch_once()
            try:
                await self._shared.exchange_metrics(self._replica, self._metrics.page())
            except SharedUnavailable:
                _logger.error("sessions_lost")
            except Exception as error:  # a replica that stops watching would miss promotions
                fields = {"fields": {"problem": one_line(error)}}
                _logger.error("metrics_not_exchanged", extra=fields)
            self._log.flush()


def build_app(arguments: dict[str, Any]) -> serve.Application:
    """The application of `rl-service serve` and of a Serve config.

    Args:
        arguments: see `Arguments`. A dictionary on purpose: Serve checks typed arguments only
            where annotations are no strings, and says nothing where it does not.

    Raises:
        SettingsError: for an unknown or impossible argument; all are listed. Also if others could
            ask without a token.
    """
    try:
        given = Arguments.model_validate(arguments)
    except ValidationError as error:
        raise SettingsError(
            [
                one_line(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}")
                for problem in error.errors(include_url=False)
            ]
        ) from error
    if given.max_replicas < given.min_replicas:
        raise SettingsError(
            f"max_replicas {given.max_replicas} is below min_replicas {given.min_replicas}"
        )
    # The token file need not be on the node that builds: each replica reads it.
    has_file, has_variable = given.token_file is not None, bool(os.environ.get(TOKENS_VARIABLE))
    _check_exposure(with_tokens=has_file or has_variable)
    limits = given.limits
    deployment = serve.deployment(
        serve.ingress()(PolicyService),
        name="policies",
        # None of Serve's own: it would count requests whose bodies have not arrived.
        max_ongoing_requests=_UNLIMITED,
        graceful_shutdown_timeout_s=_DRAIN_S,
        health_check_period_s=2.0,
        health_check_timeout_s=20.0,
        ray_actor_options={"num_cpus": given.num_cpus, "num_gpus": given.num_gpus},
        deployment_actors=[
            DeploymentActorConfig(
                name=_SHARED,
                actor_class=ray.remote(SharedState),
                init_args=(limits.max_sessions, limits.session_ttl_s),
                actor_options={"num_cpus": 0},
            ),
            DeploymentActorConfig(
                name=_PLAYS,
                actor_class=ray.remote(PlayRoom),
                init_args=(given.allow_modules,),
                actor_options={"num_cpus": 0},
            ),
        ],
        **_replicas(given),
    )
    return deployment.bind(given.model_dump(mode="json"))


def _replicas(given: Arguments) -> dict[str, Any]:
    if given.min_replicas == given.max_replicas:
        return {"num_replicas": given.min_replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=given.min_replicas,
            initial_replicas=given.min_replicas,
            max_replicas=given.max_replicas,
            # Fewer than clients: a replica counts the requests that it has begun to read. Others
            # wait in its sockets while its one event loop is busy: 64 clients that did nothing but
            # ask for large batches were 18 ongoing requests on average.
            target_ongoing_requests=8,
            upscale_delay_s=5.0,
            downscale_delay_s=60.0,
        )
    }


def _check_exposure(*, with_tokens: bool) -> None:
    """Compares where Serve's proxies bind with who may ask.

    Args:
        with_tokens: whether each request needs a token.

    Raises:
        SettingsError: if others than the proxy's own machine could ask without one.
    """
    if with_tokens or not ray.is_initialized():
        return
    client = serve_client()
    if client is None:  # nothing listens yet; each replica asks again
        return
    host = client.http_config.host
    if host is None or not is_loopback(host):
        raise SettingsError(
            f"Serve's http_options bind to host {host}, which other machines can reach, so the "
            f"application needs tokens; give token_file in its args, or {TOKENS_VARIABLE} on "
            f"every node, or start Serve with http_options host: 127.0.0.1"
        )


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log_to(path: Path) -> MemoryHandler:
    """Sends the service's events to a file, a few hundred lines at once; `flush` writes the rest.

    Warnings go to standard error as well, and are written at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RotatingFileHandler(
        path, maxBytes=_FILE_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", delay=True
    )
    file.setFormatter(_JsonLines())
    buffer = MemoryHandler(_BUFFERED_LINES, flushLevel=logging.WARNING, target=file)
    shown = logging.StreamHandler()
    shown.setLevel(logging.WARNING)
    shown.setFormatter(_JsonLines())
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
    _logger.handlers = [buffer, shown]
    return buffer
