"""Plays: a policy acts in its environment, each in a process of its own. Needs no Ray.

A process is bounded in number and in time, since environments are the least predictable code
here: one that hangs, crashes or leaks takes no request with it but its own.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_service.page.child import PLAY_FAILED, Child, PlayError, Reply

_LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class PlayTimes:
    """How long a play may take, in seconds."""

    start_s: float = 30.0
    """Until it shows the first picture."""
    request_s: float = 10.0
    """For each answer."""
    idle_s: float = 60.0
    """After its last request."""
    age_s: float = 900.0
    """In all."""
    replay_s: float = 120.0
    """For the video of an episode."""


class PlayRoom:
    """The running plays of one server. All methods belong to one event loop.

    Replies are those of the HTTP API, without `request_id`.

    Args:
        allow_modules: modules from which bundles may take environments and kinds of models.
        max_plays: plays at a time.
        times: when they end.
    """

    def __init__(
        self,
        allow_modules: Sequence[str] = (),
        max_plays: int = 4,
        times: PlayTimes | None = None,
    ) -> None:
        self._allow_modules = list(allow_modules)
        self._max_plays = max_plays
        self._times = times or PlayTimes()
        self._plays: dict[str, Child] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def open(
        self, name: str, bundle: Path, base_model: str | None, seed: int | None
    ) -> Reply:
        """Starts a play at the first step of an episode.

        Args:
            name: of the policy, for the reply.
            bundle: its folder.
            base_model: see `load_bundle`.
            seed: of the first episode; None draws one.

        Raises:
            PlayError: `too_many_plays`; `not_playable` if the bundle or its environment cannot be
                used here; `invalid_request`; `play_failed`.
        """
        _check_seed(seed)
        request = self._first_request("open", bundle, base_model) | {"seed": seed}
        play_id, child = self._new()
        try:
            await self._start(play_id, child)
            reply = await child.answer(request, self._times.start_s)
        except BaseException:
            self._end(play_id)
            raise
        self._end_when_idle(play_id, child)
        return {"play": play_id, "policy": name, **reply}

    async def replay(self, bundle: Path, base_model: str | None) -> bytes:
        """An mp4 video of one episode, for which a play is taken until it is made.

        Raises:
            PlayError: as for `open`.
        """
        play_id, child = self._new()
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                video = Path(folder, "replay.mp4")
                request = self._first_request("replay", bundle, base_model) | {"video": str(video)}
                try:
                    await self._start(play_id, child)
                    await child.answer(request, self._times.replay_s)
                    return video.read_bytes()
                finally:  # before the folder goes
                    self._end(play_id)
        except OSError as error:
            raise PlayError.failed(f"the video cannot be written: {error.strerror}") from error

    async def step(self, play_id: str, action: Any) -> Reply:
        """Takes one step.

        Args:
            play_id: of `open`.
            action: as the environment takes it, flattened; None is what the policy would do.

        Raises:
            PlayError: `unknown_play`, `episode_ended`, `invalid_request`, `play_failed`.
        """
        return await self._request(play_id, {"do": "step", "action": action})

    async def reset(self, play_id: str, seed: int | None) -> Reply:
        """Begins another episode; errors as for `step`."""
        _check_seed(seed)
        return await self._request(play_id, {"do": "reset", "seed": seed})

    async def ask(self, play_id: str, observation: Any) -> Reply:
        """What the policy would do at another observation (O,), given the same steps before it.

        Nothing moves. Errors as for `step`.
        """
        return await self._request(play_id, {"do": "ask", "observation": observation})

    async def close(self, play_id: str) -> Reply:
        """Ends a play.

        Raises:
            PlayError: `unknown_play`.
        """
        self._find(play_id)
        self._end(play_id)
        return {}

    async def shutdown(self) -> None:
        """Ends all plays, waits for their processes, and opens no more."""
        self._is_closed = True
        for play_id in list(self._plays):
            self._end(play_id)
        await asyncio.gather(*self._ending)

    def _first_request(self, do: str, bundle: Path, base_model: str | None) -> dict[str, Any]:
        return {
            "do": do,
            "bundle": str(bundle),
            "base_model": base_model,
            "allow_modules": self._allow_modules,
        }

    def _new(self) -> tuple[str, Child]:
        self._check_capacity()
        play_id, child = secrets.token_urlsafe(16), Child()
        self._plays[play_id] = child
        return play_id, child

    async def _start(self, play_id: str, child: Child) -> None:
        await child.start()
        child.end_at(child.started_at + self._times.age_s, lambda: self._end(play_id))

    def _check_capacity(self) -> None:
        for play_id, child in list(self._plays.items()):
            if child.is_dead:
                self._end(play_id)
        if self._is_closed:
            raise PlayError.failed("the server is shutting down")
        if len(self._plays) >= self._max_plays:
            raise PlayError(
                "too_many_plays",
                503,
                f"all {self._max_plays} plays are in use; close one, or try again in a minute",
            )

    def _find(self, play_id: str) -> Child:
        child = self._plays.get(play_id)
        if child is None:
            raise PlayError(
                "unknown_play",
                404,
                f"no such play, or it has ended: a play ends {self._times.idle_s:g} s after its "
                f"last request and {self._times.age_s / 60:g} min after its start; open another",
            )
        return child

    async def _request(self, play_id: str, request: dict[str, Any]) -> Reply:
        child = self._find(play_id)
        async with child.turn:
            self._find(play_id)  # it may have ended while this request waited
            child.end_at(child.started_at + self._times.age_s, lambda: self._end(play_id))
            try:
                return await child.answer(request, self._times.request_s)
            except PlayError as error:
                if error.code == PLAY_FAILED:
                    self._end(play_id)
                raise
            finally:
                self._end_when_idle(play_id, child)

    def _end_when_idle(self, play_id: str, child: Child) -> None:
        if play_id in self._plays:
            now = asyncio.get_running_loop().time()
            moment = min(now + self._times.idle_s, child.started_at + self._times.age_s)
            child.end_at(moment, lambda: self._end(play_id))

    def _end(self, play_id: str) -> None:
        child = self._plays.pop(play_id, None)
        if child is not None:
            child.kill()
            waiting = asyncio.get_running_loop().create_task(child.wait())
            self._ending.add(waiting)
            waiting.add_done_callback(self._ending.discard)


def _check_seed(seed: Any) -> None:
    if seed is not None and not (type(seed) is int and 0 <= seed <= _LARGEST_SEED):
        raise PlayError.invalid(f"seed must be an integer from 0 to {_LARGEST_SEED}, or null")
