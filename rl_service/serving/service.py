"""What the routes do: requests in, replies out, as dictionaries. Knows no HTTP framework."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from custom_models.text import nearest
from rl_service.common.errors import BundleError, RegistryError
from rl_service.policies.runner import Actions
from rl_service.policies.simple_spaces import BoxSpec
from rl_service.serving.inputs import (
    Limits,
    OpenSession,
    read_body,
    read_histories,
    read_observations,
)
from rl_service.serving.loading import Loaded, Loader
from rl_service.serving.memory import longer, remembered
from rl_service.serving.refusals import RequestError
from rl_service.serving.shared import ServingMetrics, SessionState, Shared, TooManySessions
from rl_service.serving.sources import PolicySource
from rl_service.serving.versions import VersionRouter

_MAX_CONFLICTS = 5
_MAX_RECENT = 1024
_LONGEST_RETRY_S = 60
Reply = dict[str, Any]


class Service:
    """The served policies, and acting without a session.

    Args:
        sources: of the policies.
        limits: of a request, and of what stays loaded.
        shared: the sessions, and what the replicas agree on.
        metrics: where it counts.
        canary_share: see `VersionRouter`.
    """

    def __init__(
        self,
        sources: Iterable[PolicySource],
        limits: Limits,
        shared: Shared,
        metrics: ServingMetrics,
        canary_share: float = 0.0,
    ) -> None:
        self.limits = limits
        self.loader = Loader(limits, metrics)
        self._shared, self._metrics, self._canary_share = shared, metrics, canary_share
        self.policies = {source.name: self._router(source) for source in sources}
        self._described: dict[tuple[str, int], Reply] = {}
        self.sessions = Sessions(self.policies, self.loader, shared, limits)

    def _router(self, source: PolicySource) -> VersionRouter:
        return VersionRouter(source, self.loader, self._shared, self._metrics, self._canary_share)

    async def add(self, source: PolicySource) -> None:
        """Serves one more policy, once it has passed its checks."""
        router = self._router(source)
        await router.start()
        self.policies[source.name] = router

    async def start(self) -> None:
        """See `VersionRouter.start`."""
        for versions in self.policies.values():
            await versions.start()

    async def watch_once(self) -> None:
        """See `VersionRouter.watch_once`."""
        for versions in list(self.policies.values()):
            await versions.watch_once()

    async def list_policies(self) -> Reply:
        """All served policies."""
        found = []
        for name in list(self.policies):  # more may come meanwhile
            with suppress(BundleError, RegistryError):  # what cannot be read now hides no other
                found.append(await self.describe(name))
        return {"policies": found}

    async def loaded(self, reference: str) -> Loaded:
        """The version of `name` that takes the traffic, or that of `name:version`."""
        versions, version = _find(self.policies, reference)
        return await (versions.stable() if version is None else versions.pinned(version))

    async def describe(self, reference: str) -> Reply:
        """What a client must know of one: spaces, version, score.

        Args:
            reference: `name`, or `name:version`.
        """
        versions, version = _find(self.policies, reference)
        key = versions.name, versions.stable_version if version is None else version
        described = self._described.get(key)
        if described is None:  # kept, as a list of many policies must not load all of them
            loaded = await self.loaded(reference)
            described = self._described[loaded.name, loaded.version] = loaded.description
        return dict(described)

    async def act(self, reference: str, body: bytes) -> Reply:
        """Actions for one observation or a batch."""
        versions, version = _find(self.policies, reference)
        chosen = await (versions.chosen() if version is None else versions.pinned(version))
        expected = f'{_one(chosen)} or {{"observations": a list of such}}'
        request = read_body(chosen.act_body, body, expected)
        if (request.observation is None) == (request.observations is None):
            raise RequestError(
                422,
                "invalid_request",
                f"the body holds both of observation and observations, or neither; expected "
                f"{expected}",
            )
        single = request.observation is not None
        rows = [request.observation] if single else request.observations
        if not 0 < len(rows) <= self.limits.max_batch_size:
            raise RequestError(
                413 if rows else 422,
                "batch_size",
                f"observations holds {len(rows)} rows; send 1 to {self.limits.max_batch_size}",
            )
        masks = request.action_mask
        if masks and not isinstance(masks[0], list):
            masks = [masks]
        key = "observation" if single else "observations"
        reader = chosen.policy.reader
        num_slow = 0 if isinstance(reader.space, BoxSpec) else len(rows)
        obs, mask = await self.loader.apart(num_slow, read_observations, rows, masks, reader, key)
        given = request.history
        if given is not None and not isinstance(given, list):
            given = [given]
        recall = partial(read_histories, given, obs, reader)
        loaded, actions = await versions.act(
            chosen,
            obs,
            deterministic=request.deterministic,
            recall=recall,
            mask=mask,
            pinned=version is not None,
        )
        reply = _reply(loaded, actions, single, carried=request.value)
        if request.value:  # a client that asks for values sends its whole episode; see the guide
            timesteps = [len(history.observations) for history in given or ()] or [0] * len(obs)
            values = await self.loader.values(loaded, obs, recall, timesteps)
            reply |= {"value": values[0]} if single else {"values": values}
        return reply


class Sessions:
    """Episodes that the service remembers: opened, acted in, closed.

    A request that comes twice under one request id is answered twice with the same action: a
    client may try again after a lost reply.

    Args:
        policies: by name.
        loader: holds their versions.
        shared: where the sessions live.
        limits: of sessions.
    """

    def __init__(
        self,
        policies: Mapping[str, VersionRouter],
        loader: Loader,
        shared: Shared,
        limits: Limits,
    ) -> None:
        self._policies, self._loader = policies, loader
        self._shared, self._limits = shared, limits
        self._recent: OrderedDict[str, SessionState] = OrderedDict()
        """After the last step that this replica took: a guess that saves asking for the state. If
        another replica has taken a step since, the commit fails and the state is asked for."""

    async def open(self, body: bytes) -> Reply:
        """A new session, at its first step."""
        request = read_body(OpenSession, body, '{"policy": name}')
        versions, version = _find(self._policies, request.policy)
        loaded = await (versions.chosen() if version is None else versions.pinned(version))
        if request.value:
            await self._loader.critic(loaded)  # refuses before anything is open
        state = SessionState(
            versions.name, loaded.version, with_value=request.value, pinned=version is not None
        )
        try:
            session_id = await self._shared.open_session(state)
        except TooManySessions as full:
            raise RequestError(
                503,
                "too_many_sessions",
                f"all {self._limits.max_sessions} sessions are in use; close those that have "
                f"ended, or try again later",
                retry_after_s=min(full.retry_after_s, _LONGEST_RETRY_S),
            ) from full
        return {
            "session": session_id,
            "policy": state.policy,
            "version": state.version,
            "ttl_s": self._limits.session_ttl_s,
        }

    async def act(self, session_id: str, body: bytes, request_id: str) -> Reply:
        """The action at the next step of a session."""
        # Some clients give all requests one id.
        identity = f"{request_id}:{hashlib.blake2b(body, digest_size=8).hexdigest()}"
        for attempt in range(_MAX_CONFLICTS):
            state = None if attempt else self._recent.pop(session_id, None)
            state = state or await self._shared.read_session(session_id)
            if state is None:
                raise _unknown_session()
            if state.last_request_id == identity:  # sent again: the client has seen no reply
                return dict(json.loads(state.last_reply))
            reply, after = await self._step(state, body, identity)
            if await self._shared.commit_session(session_id, after):
                self._recent[session_id] = after
                if len(self._recent) > _MAX_RECENT:
                    self._recent.popitem(last=False)
                return reply
        raise RequestError(
            409,
            "session_conflict",
            "other requests use the session at the same time; send one step at a time",
        )

    async def close(self, session_id: str) -> Reply:
        """Forgets a session; says how it went."""
        state: SessionState | None = await self._shared.close_session(session_id)
        if state is None:
            raise _unknown_session()
        return {
            "policy": state.policy,
            "version": state.version,
            "num_steps": state.num_steps,
            "episode_return": state.episode_return,
        }

    async def _step(
        self, state: SessionState, body: bytes, identity: str
    ) -> tuple[Reply, SessionState]:
        versions = self._policies[state.policy]
        find = versions.pinned if state.pinned else versions.of_session
        loaded = await find(state.version)
        request = read_body(loaded.session_act_body, body, _one(loaded))
        masks = None if request.action_mask is None else [request.action_mask]
        obs, mask = read_observations(
            [request.observation], masks, loaded.policy.reader, "observation"
        )
        episode_return = state.episode_return + (request.reward or 0.0)
        if not math.isfinite(episode_return):
            raise RequestError(422, "invalid_request", "the rewards add up to no finite number")
        recall = partial(
            remembered, state.memory, obs.reshape(-1), loaded.policy.reader.action_spec
        )
        answered, actions = await versions.act(
            loaded,
            obs,
            deterministic=request.deterministic,
            recall=recall,
            mask=mask,
            pinned=state.pinned,
        )
        reply = _reply(answered, actions, single=True) | {"step": state.num_steps}
        num_earlier = answered.num_earlier
        if state.with_value:
            [reply["value"]] = await self._loader.values(answered, obs, recall, [state.num_steps])
            critic = await self._loader.critic(answered)
            num_earlier = max(num_earlier, critic.context_length - 1)
        after = state._replace(
            version=answered.version,
            num_steps=state.num_steps + 1,
            memory=longer(state.memory, obs, actions.actions, num_earlier),
            episode_return=episode_return,
            last_request_id=identity,
            last_reply=json.dumps(reply).encode(),
        )
        return reply, after


def _find(
    policies: Mapping[str, VersionRouter], reference: str
) -> tuple[VersionRouter, int | None]:
    """What `name` or `name:version` refers to.

    Raises:
        RequestError: 404 if no such policy is served.
    """
    name, separator, version = reference.partition(":")
    if separator and not (version.isascii() and version.isdigit() and len(version) <= 9):
        raise RequestError(
            404, "unknown_version", "what follows the colon is not a version; use a number"
        )
    if name not in policies:
        near = nearest(name[:100], policies)
        hint = f"did you mean {near}? " if near else ""
        raise RequestError(
            404, "unknown_policy", f"no such policy; {hint}served: {', '.join(policies)}"
        )
    return policies[name], int(version) if separator else None


def _unknown_session() -> RequestError:
    return RequestError(
        404,
        "unknown_session",
        "no such session, or it has expired; open one with POST /v1/sessions",
    )


def _one(loaded: Loaded) -> str:
    return f'{{"observation": {loaded.policy.reader.words}}}'


def _reply(loaded: Loaded, actions: Actions, single: bool, *, carried: bool = False) -> Reply:
    env_actions, log_prob = actions.env_actions.tolist(), actions.log_prob.tolist()
    reply: Reply = (
        {"action": env_actions[0], "log_prob": log_prob[0]}
        if single
        else {"actions": env_actions, "log_prob": log_prob}
    )
    if loaded.num_earlier or carried:  # what a client that carries its history sends back
        taken = actions.actions.tolist()
        reply["policy_action" if single else "policy_actions"] = taken[0] if single else taken
    return reply | {"policy": loaded.name, "version": loaded.version}
