"""The OpenAPI document: every route, with the shapes and bounds of the served policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_service import __version__
from rl_service.policies.spec import BoxSpec, DiscreteSpec, PolicySpec
from rl_service.serving.limits import Limits
from rl_service.serving.loading import Loaded

Schema = dict[str, Any]
_ERROR_STATUSES = {
    "400": "The body is no JSON.",
    "401": "A token is needed.",
    "404": "No such policy, version or session.",
    "408": "The body did not arrive in time.",
    "409": "The version failed its checks, or the session is used twice at once.",
    "413": "Too large a body or batch.",
    "415": "The body is not called application/json.",
    "422": "The body holds something else than is expected.",
    "503": "Too busy: come again after `Retry-After` seconds.",
}

_LARGEST = float(np.finfo(np.float32).max)
_NUMBER: Schema = {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST}
"""What float32 has."""
_NULL: Schema = {"type": "null"}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
_WITH_VALUE: Schema = {
    "type": "boolean",
    "default": False,
    "description": "Also tell what the critic expects from here on.",
}


def openapi_document(policies: Sequence[Loaded], limits: Limits, needs_token: bool) -> Schema:
    """Built of what is loaded, so that a client sees the numbers that each policy reads."""
    example = policies[0]
    paths: Schema = {
        "/healthz": {"get": _operation("Whether the service answers", _object("status"))},
        "/readyz": {"get": _operation("Whether it may take traffic", _object("status"))},
        "/metrics": {"get": _operation("Prometheus metrics", None)},
        "/v1/policies": {"get": _operation("The served policies", _object("policies"))},
        "/v1/policies/{name}": {
            "get": _operation("One policy", _object("policy", "version"), _name_of(policies))
        },
        "/v1/policies/{name}/act": {
            "post": _operation(
                "Actions for one observation or a batch, by the policy in the path",
                {"anyOf": [_reply_schema(policy) for policy in policies]},
                _name_of(policies),
                {"anyOf": [_act_schema(policy, limits) for policy in policies]},
                _act_example(example),
            )
        },
    }
    for policy in policies:
        paths[f"/v1/policies/{policy.name}/act"] = {
            "post": _operation(
                f"Actions of {policy.name} ({policy.policy.spec.env.id})",
                _reply_schema(policy),
                (),
                _act_schema(policy, limits),
                _act_example(policy),
            )
        }
    paths |= _session_paths(policies)
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "rl-service", "version": __version__},
        "paths": paths,
    }
    if needs_token:
        document["components"] = {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}
        }
        document["security"] = [{"token": []}]
    return document


def _session_paths(policies: Sequence[Loaded]) -> Schema:
    names = [policy.name for policy in policies]
    session = ({"name": "session", "in": "path", "required": True, "schema": {"type": "string"}},)
    reward = {
        "type": ["number", "null"],
        "description": "For the step before; summed up, not acted on.",
    }
    step: Schema = {
        "anyOf": [
            _closed(
                {
                    "observation": _space(policy.policy.spec.observation_space),
                    "deterministic": {"type": "boolean", "default": True},
                    "reward": reward,
                },
                "observation",
            )
            for policy in policies
        ]
    }
    opened = _operation(
        "Opens a session: the service remembers the episode",
        _object("session", "policy", "version"),
        (),
        _closed({"policy": _NAME | {"examples": names}, "value": _WITH_VALUE}, "policy"),
        {"policy": names[0]},
    )
    example = {"observation": example_observation(policies[0].policy.spec)}
    acted = _operation(
        "The next step of a session",
        {"anyOf": [_reply_schema(policy) for policy in policies]},
        session,
        step,
        example,
    )
    closed = _operation(
        "Closes a session", _object("policy", "num_steps", "episode_return"), session
    )
    return {
        "/v1/sessions": {"post": opened},
        "/v1/sessions/{session}/act": {"post": acted},
        "/v1/sessions/{session}": {"delete": closed},
    }


def _operation(
    summary: str,
    reply: Schema | None,
    parameters: Sequence[Schema] = (),
    body: Schema | None = None,
    example: Any = None,
) -> Schema:
    content = (
        {"text/plain": {"schema": {"type": "string"}}}
        if reply is None
        else {"application/json": {"schema": reply}}
    )
    error = {"application/json": {"schema": _error_schema()}}
    responses: Schema = {"200": {"description": "Done.", "content": content}}
    for status, meaning in _ERROR_STATUSES.items():
        responses[status] = {"description": meaning, "content": error}
    operation: Schema = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body, "example": example}},
        }
    return operation


def _name_of(policies: Sequence[Loaded]) -> tuple[Schema]:
    names = [policy.name for policy in policies]
    schema = {"type": "string", "examples": [*names, f"{names[0]}:{policies[0].version}"]}
    return ({"name": "name", "in": "path", "required": True, "schema": schema},)


def _act_schema(loaded: Loaded, limits: Limits) -> Schema:
    observation = _space(loaded.policy.spec.observation_space)
    one_history = _closed(
        {
            "observations": {"type": "array", "items": observation},
            "actions": {"type": "array", "items": _policy_action(loaded)},
        },
        "observations",
        "actions",
    )
    more = {"type": "array", "items": one_history, "maxItems": limits.max_batch_size}
    common = {"deterministic": {"type": "boolean", "default": True}, "value": _WITH_VALUE}
    batch = {"type": "array", "items": observation, "minItems": 1}
    return {
        "oneOf": [
            _closed(
                common
                | {
                    "observation": observation,
                    "observations": _NULL,
                    "history": {"anyOf": [one_history, _NULL]},
                },
                "observation",
            ),
            _closed(
                common
                | {
                    "observation": _NULL,
                    "observations": batch | {"maxItems": limits.max_batch_size},
                    "history": {"anyOf": [more, _NULL]},
                },
                "observations",
            ),
        ]
    }


def _reply_schema(loaded: Loaded) -> Schema:
    action = _space(loaded.policy.spec.action_space)
    number = {"type": "number"}
    return {
        "type": "object",
        "properties": {
            "action": action,
            "actions": {"type": "array", "items": action},
            "log_prob": {"anyOf": [number, {"type": "array", "items": number}]},
            "value": number,
            "values": {"type": "array", "items": number},
            "policy": {"type": "string"},
            "version": {"type": "integer"},
            "request_id": {"type": "string"},
        },
        "required": ["log_prob", "policy", "version", "request_id"],
    }


def _error_schema() -> Schema:
    text = {"type": "string"}
    inner = _closed({"code": text, "message": text, "request_id": text}, "code", "message")
    return _closed({"error": inner}, "error")


def _space(space: BoxSpec | DiscreteSpec) -> Schema:
    if isinstance(space, DiscreteSpec):
        return {"type": "integer", "minimum": space.start, "maximum": space.start + space.n - 1}
    schema = _NUMBER
    for size in reversed(space.shape):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    return schema


def _policy_action(loaded: Loaded) -> Schema:
    spec = loaded.policy.action_spec
    if spec.kind == "discrete":
        return {"type": "integer", "minimum": 0, "maximum": spec.size - 1}
    return {
        "type": "array",
        "items": _NUMBER,
        "minItems": spec.size,
        "maxItems": spec.size,
    }


def _act_example(loaded: Loaded) -> Schema:
    return {"observation": example_observation(loaded.policy.spec)}


def example_observation(spec: PolicySpec) -> Any:
    """A recorded one, rounded to what a person can read."""
    row = np.round(np.array(spec.parity.observations[0]), 3)
    return row.reshape(spec.observation_space.shape).tolist()


def _object(*required: str) -> Schema:
    return {"type": "object", "required": [*required, "request_id"]}


def _closed(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
