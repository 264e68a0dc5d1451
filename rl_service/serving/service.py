"""What the routes do: requests in, replies out, as dictionaries. Knows no HTTP framework."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from custom_models.history import History
from custom_models.spaces import FloatArray
from rl_service.common.errors import ObservationError
from rl_service.policies.runner import Actions
from rl_service.serving.engine import Engine
from rl_service.serving.errors import RequestError
from rl_service.serving.limits import Limits
from rl_service.serving.loading import Loaded
from rl_service.serving.memory import Memory
from rl_service.serving.schemas import (
    OpenSession,
    act_body,
    as_array,
    read_body,
    session_act_body,
)
from rl_service.serving.sessions import SessionState, TooManySessions
from rl_service.serving.shared import Shared

_MAX_CONFLICTS = 5
_MAX_RECENT = 1024
Reply = dict[str, Any]


class Service:
    """Acting, with and without sessions.

    Args:
        engine: the policies.
        shared: the sessions.
        limits: of a request.
    """

    def __init__(self, engine: Engine, shared: Shared, limits: Limits) -> None:
        self.engine, self.limits = engine, limits
        self._shared = shared
        self._recent: OrderedDict[str, SessionState] = OrderedDict()
        """After the last step that this replica took: a guess that saves the question for the
        state. Should another replica have gone on, the commit fails and the question is asked."""

    async def policies(self) -> Reply:
        """All served policies."""
        return {"policies": [await self.policy(name) for name in self.engine.names]}

    async def policy(self, reference: str) -> Reply:
        """What a client must know of one: spaces, version, score.

        Args:
            reference: `name`, or `name:version`.
        """
        loaded = await self._named(reference)
        spec = loaded.policy.spec
        return {
            "policy": loaded.name,
            "version": loaded.version,
            "env": spec.env.id,
            "max_episode_steps": spec.env.max_episode_steps,
            "model": spec.model.name,
            "observation_space": spec.observation_space.model_dump(),
            "action_space": spec.action_space.model_dump(),
            "context_length": loaded.policy.actor.context_length,
            "episode_return_mean": spec.evaluation.get("episode_return_mean"),
            "weights_sha256": spec.weights_sha256,
        }

    async def act(self, reference: str, body: bytes) -> Reply:
        """Actions for one observation or a batch."""
        name, version = _split(reference)
        self.engine.check_name(name)
        known = await self._named(reference)
        shape = known.policy.observation_shape
        schema = act_body(len(shape), known.action_ndim)
        request = read_body(schema, body, _expected(shape))
        if (request.observation is None) == (request.observations is None):
            raise RequestError(
                422,
                "invalid_request",
                f"the body holds both of observation and observations, or neither; expected "
                f"{_expected(shape)}",
            )
        single = request.observation is not None
        rows = [request.observation] if single else request.observations
        if not 0 < len(rows) <= self.limits.max_batch_size:
            raise RequestError(
                413 if rows else 422,
                "batch_size",
                f"observations holds {len(rows)} rows; send 1 to {self.limits.max_batch_size}",
            )
        obs = as_array(rows, shape, "observations")  # (B, *shape)
        chosen = known if version is not None else await self.engine.chosen(name)
        loaded, actions = await self._ask(
            chosen,
            obs,
            request.deterministic,
            lambda asked: _history(asked, asked.memory, request.history, obs),
            pinned=version is not None,
        )
        reply = _act_reply(loaded, actions, single, carried=request.value)
        if request.value:
            timesteps = _given_steps(request.history, len(obs))
            values = await self.engine.values(
                loaded,
                lambda memory: (
                    _history(loaded, memory, request.history, obs)
                    or History.first_steps(
                        obs.reshape(len(obs), -1), memory.num_earlier + 1, loaded.policy.action_spec
                    )
                ),
                timesteps,
            )
            reply |= {"value": values[0]} if single else {"values": values}
        return reply

    async def open_session(self, body: bytes) -> Reply:
        """A new session, at its first step."""
        request = read_body(OpenSession, body, '{"policy": name}')
        name, version = _split(request.policy)
        self.engine.check_name(name)
        if version is None:
            loaded = await self.engine.chosen(name)
        else:
            loaded = await self.engine.pinned(name, version)
        try:
            await self.engine.keeper(loaded, request.value)  # refuses before anything is open
            session_id = await self._shared.open_session(
                name, loaded.version, request.value, version is not None
            )
        except TooManySessions as full:
            raise RequestError(
                503,
                "too_many_sessions",
                f"all {self.limits.max_sessions} sessions are in use; close those that have "
                f"ended, or come again",
                retry_after_s=min(full.retry_after_s, 60),
            ) from full
        return {
            "session": session_id,
            "policy": name,
            "version": loaded.version,
            "ttl_s": self.limits.session_ttl_s,
        }

    async def session_act(self, session_id: str, body: bytes, request_id: str) -> Reply:
        """The action at the next step of a session."""
        identity = _identity(request_id, body)
        for attempt in range(_MAX_CONFLICTS):
            state = None if attempt else self._recent.pop(session_id, None)
            state = state or await self._shared.read_session(session_id)
            if state is None:
                raise _unknown_session()
            # Sent again by a client that has not seen the reply. Some give all requests one id.
            if state.last_request_id == identity:
                return dict(json.loads(state.last_reply))
            reply, after = await self._step(state, body, identity)
            if await self._shared.commit_session(session_id, after):
                self._remember(session_id, after)
                return reply
        raise RequestError(
            409, "session_conflict", "the session is used by others at once; send one step a time"
        )

    async def close_session(self, session_id: str) -> Reply:
        """Forgets a session; says how it went."""
        state = await self._shared.close_session(session_id)
        if state is None:
            raise _unknown_session()
        return {
            "policy": state.policy,
            "version": state.version,
            "num_steps": state.num_steps,
            "episode_return": state.episode_return,
        }

    def _remember(self, session_id: str, state: SessionState) -> None:
        self._recent[session_id] = state
        while len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)

    async def _named(self, reference: str) -> Loaded:
        name, version = _split(reference)
        self.engine.check_name(name)
        if version is None:
            return await self.engine.stable(name)
        return await self.engine.pinned(name, version)

    async def _step(
        self, state: SessionState, body: bytes, identity: str
    ) -> tuple[Reply, SessionState]:
        find = self.engine.pinned if state.pinned else self.engine.of_session
        loaded = await find(state.policy, state.version)
        shape = loaded.policy.observation_shape
        request = read_body(session_act_body(len(shape)), body, _expected(shape, session=True))
        obs = as_array([request.observation], shape, "observation")  # (1, *shape)
        episode_return = state.episode_return + (request.reward or 0.0)
        if not math.isfinite(episode_return):
            raise RequestError(422, "invalid_request", "the rewards add up to no finite number")
        flat = obs.reshape(-1)
        answered, actions = await self._ask(
            loaded,
            obs,
            request.deterministic,
            lambda asked: (
                asked.memory.history(state.memory, flat) if asked.memory.num_earlier else None
            ),
            pinned=state.pinned,
        )
        reply = _act_reply(answered, actions, single=True) | {"step": state.num_steps}
        if state.with_value:
            [reply["value"]] = await self.engine.values(
                answered, lambda memory: memory.history(state.memory, flat), [state.num_steps]
            )
        keeper = await self.engine.keeper(answered, state.with_value)
        after = SessionState(
            policy=state.policy,
            version=answered.version,
            num_steps=state.num_steps + 1,
            memory=keeper.after(state.memory, flat, _flat(actions)[0]),
            episode_return=episode_return,
            last_request_id=identity,
            last_reply=json.dumps(reply).encode(),
            with_value=state.with_value,
            pinned=state.pinned,
        )
        return reply, after

    async def _ask(
        self,
        loaded: Loaded,
        obs: FloatArray,
        deterministic: bool,
        remember: Callable[[Loaded], History | None],
        pinned: bool,
    ) -> tuple[Loaded, Actions]:
        try:
            return await self.engine.act(
                loaded, obs, deterministic=deterministic, remember=remember, pinned=pinned
            )
        except ObservationError as error:
            raise RequestError(422, "invalid_observation", str(error)) from error


def _identity(request_id: str, body: bytes) -> str:
    return f"{request_id}:{hashlib.blake2b(body, digest_size=8).hexdigest()}"


def _split(reference: str) -> tuple[str, int | None]:
    """Name and version of `name` or `name:version`."""
    name, separator, version = reference.partition(":")
    if not separator:
        return name, None
    if not version.isascii() or not version.isdigit() or len(version) > 9:
        raise RequestError(
            404, "unknown_version", "what follows the colon is no version; use a number"
        )
    return name, int(version)


def _unknown_session() -> RequestError:
    return RequestError(
        404,
        "unknown_session",
        "no such session, or it has expired; open one with POST /v1/sessions",
    )


def _expected(shape: tuple[int, ...], session: bool = False) -> str:
    one = f'{{"observation": numbers of shape {list(shape)}}}'
    return one if session else f'{one} or {{"observations": a list of such}}'


def _given_steps(given: Any, batch: int) -> list[int]:
    """Env steps before each row, if the client has sent its whole episode; see the guide."""
    if given is None:
        return [0] * batch
    items = given if isinstance(given, list) else [given]
    return [len(item.observations) for item in items]


def _history(loaded: Loaded, memory: Memory, given: Any, obs: FloatArray) -> History | None:
    """What the client carries: the steps before, of each row."""
    if given is None:
        return None
    items = given if isinstance(given, list) else [given]
    if len(items) != len(obs):
        raise RequestError(
            422, "wrong_shape", f"history is of {len(items)} rows; there are {len(obs)}"
        )
    if memory.num_earlier == 0:
        return None
    action_shape = (loaded.policy.action_spec.size,) if loaded.action_ndim else ()
    histories = []
    for item, row in zip(items, obs, strict=True):
        if len(item.observations) != len(item.actions):
            raise RequestError(
                422,
                "wrong_shape",
                f"history has {len(item.observations)} observations and {len(item.actions)} "
                f"actions; send the action that was taken at each observation before this one",
            )
        earlier = as_array(item.observations, row.shape, "history.observations")
        taken = as_array(item.actions, action_shape, "history.actions")
        steps = earlier.reshape(len(earlier), row.size), memory.read_actions(taken)
        histories.append(memory.of_steps(*steps, row.reshape(-1)))
    return History(*(np.concatenate(parts) for parts in zip(*histories, strict=True)))


def _act_reply(loaded: Loaded, actions: Actions, single: bool, *, carried: bool = False) -> Reply:
    env_actions, log_prob = actions.env_actions.tolist(), actions.log_prob.tolist()
    reply: Reply = (
        {"action": env_actions[0], "log_prob": log_prob[0]}
        if single
        else {"actions": env_actions, "log_prob": log_prob}
    )
    if loaded.memory.num_earlier or carried:  # what a client that carries its history sends back
        taken = actions.actions.tolist()
        reply["policy_action" if single else "policy_actions"] = taken[0] if single else taken
    return reply | {"policy": loaded.name, "version": loaded.version}


def _flat(actions: Actions) -> FloatArray:
    return actions.actions.reshape(len(actions.actions), -1).astype(np.float32)
