"""What the service says of its routes: the OpenAPI document, and a page that shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, TypeAdapter

from custom_models.spaces import ACTION_MASK
from rl_service import __version__
from rl_service.policies.simple_spaces import MultiDiscreteSpec
from rl_service.policies.spaces import DictSpec
from rl_service.policies.spec import PolicySpec
from rl_service.serving.body_types import json_type
from rl_service.serving.inputs import OpenSession
from rl_service.serving.loading import Loaded

Schema = dict[str, Any]
_JSON = "application/json"
_ERROR_STATUSES = {
    "400": "The body is not JSON.",
    "401": "A token is needed.",
    "404": "No such policy, version or session.",
    "408": "The body did not arrive in time.",
    "409": "The version failed its checks, or the session is used twice at once.",
    "413": "Too large a body or batch.",
    "415": "The content type is not application/json.",
    "422": "The body does not hold what is expected.",
    "503": "Too busy: try again after `Retry-After` seconds.",
}
_TEXT: Schema = {"type": "string"}
_ERROR_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": _TEXT, "message": _TEXT, "request_id": _TEXT},
            "required": ["code", "message", "request_id"],
        }
    },
    "required": ["error"],
}


def openapi_document(policies: Sequence[Loaded], needs_token: bool) -> Schema:
    """Made from the schemas that read the bodies, so that clients see each policy's sizes."""
    examples = [{"observation": example_observation(each.policy.spec)} for each in policies]
    names = [policy.name for policy in policies]
    acts = [_act_schema(policy.act_body) for policy in policies]
    steps = [_schema(policy.session_act_body) for policy in policies]
    replies = [_reply_schema(policy) for policy in policies]
    opening = _schema(OpenSession)
    opening["properties"]["policy"]["examples"] = names
    closed = _object("policy", "num_steps", "episode_return")
    operations = {
        "GET /healthz": _operation("Whether the service answers", _object("status")),
        "GET /readyz": _operation("Whether it may take traffic", _object("status")),
        "GET /metrics": _operation("Prometheus metrics", None),
        "GET /v1/policies": _operation("The served policies", _object("policies")),
        "GET /v1/policies/{name}": _operation("One policy", _object("policy", "version")),
        "POST /v1/policies/{name}/act": _operation(
            "Actions for one observation or a batch, by the policy in the path",
            {"anyOf": replies},
            {"anyOf": acts},
            examples[0],
        ),
        "POST /v1/sessions": _operation(
            "Opens a session: the service remembers the episode",
            _object("session", "policy", "version"),
            opening,
            {"policy": names[0]},
        ),
        "POST /v1/sessions/{session}/act": _operation(
            "The next step of a session", {"anyOf": replies}, {"anyOf": steps}, examples[0]
        ),
        "DELETE /v1/sessions/{session}": _operation("Closes a session", closed),
    }
    for policy, act, reply, example in zip(policies, acts, replies, examples, strict=True):
        summary = f"Actions of {policy.name} ({policy.policy.spec.env.id})"
        operations[f"POST /v1/policies/{policy.name}/act"] = _operation(
            summary, reply, act, example
        )
    some = {"name": [*names, f"{names[0]}:{policies[0].version}"]}
    paths: Schema = {}
    for key, operation in operations.items():
        method, path = key.split()
        for parameter in re.findall(r"{(\w+)}", path):
            schema = _TEXT | ({"examples": some[parameter]} if parameter in some else {})
            operation["parameters"] = [
                {"name": parameter, "in": "path", "required": True, "schema": schema}
            ]
        paths.setdefault(path, {})[method.lower()] = operation
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


def example_observation(spec: PolicySpec) -> Any:
    """A recorded one, rounded to what a person can read; its action mask allows all."""
    example = spec.observed_space.unflatten(np.round(spec.parity.observations[0], 3))
    space = spec.observation_space
    if isinstance(space, DictSpec) and ACTION_MASK in space.spaces:
        mask = space.spaces[ACTION_MASK]
        # Of a component that is one of 0 and 1, the last of the two entries.
        row = np.arange(mask.size) if isinstance(mask, MultiDiscreteSpec) else np.ones(mask.size)
        return example | {ACTION_MASK: mask.unflatten(row)}
    return example


def _operation(
    summary: str, reply: Schema | None, body: Schema | None = None, example: Any = None
) -> Schema:
    done = {"text/plain": {"schema": _TEXT}} if reply is None else {_JSON: {"schema": reply}}
    responses: Schema = {"200": {"description": "Done.", "content": done}}
    for status, meaning in _ERROR_STATUSES.items():
        content = {_JSON: {"schema": _ERROR_SCHEMA}}
        responses[status] = {"description": meaning, "content": content}
    operation: Schema = {"summary": summary, "responses": responses}
    if body is not None:
        content = {_JSON: {"schema": body, "example": example}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _object(*required: str) -> Schema:
    return {"type": "object", "required": [*required, "request_id"]}


def _schema(kind: Any) -> Schema:
    """A type's JSON schema, its parts in place: a reference would look for them elsewhere."""
    schema = TypeAdapter(kind).json_schema()
    parts = schema.pop("$defs", {})

    def in_place(node: Any) -> Any:
        if isinstance(node, list):
            return [in_place(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return in_place(parts[node["$ref"].rpartition("/")[2]])
        return {key: in_place(value) for key, value in node.items()}

    return dict(in_place(schema))


def _act_schema(act_body: type[BaseModel]) -> Schema:
    """The body of `act`: an observation with one history, or several with a list of histories."""
    schema = _schema(act_body)
    properties = schema["properties"]
    null = {"type": "null"}

    def alternative(given: str, other: str, index: int) -> Schema:
        """`index` is 0 where what comes with an observation is for one, 1 if for each of many."""
        several = [key for key in ("history", "action_mask") if "anyOf" in properties[key]]
        chosen = {key: {"anyOf": [properties[key]["anyOf"][index], null]} for key in several}
        *alternatives, _ = properties[given]["anyOf"]
        one_of = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
        return schema | {
            "properties": properties | chosen | {given: one_of, other: null},
            "required": [given],
        }

    return {
        "oneOf": [
            alternative("observation", "observations", 0),
            alternative("observations", "observation", 1),
        ]
    }


def _reply_schema(loaded: Loaded) -> Schema:
    action = _schema(json_type(loaded.policy.spec.action_space))
    number = {"type": "number"}
    return {
        "type": "object",
        "properties": {
            "action": action,
            "actions": {"type": "array", "items": action},
            "log_prob": {"anyOf": [number, {"type": "array", "items": number}]},
            "value": number,
            "values": {"type": "array", "items": number},
            "policy": _TEXT,
            "version": {"type": "integer"},
            "request_id": _TEXT,
        },
        "required": ["log_prob", "policy", "version", "request_id"],
    }


_STYLE = """
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
input, textarea, select, button { font: inherit; width: 100%; box-sizing: border-box }
textarea, pre, code { font: 14px/1.4 ui-monospace, monospace }
pre { background: #f4f4f4; padding: .8rem; overflow: auto }
label { display: block; margin: .8rem 0 .2rem } button { margin: 1rem 0; padding: .4rem }
summary { cursor: pointer; margin: .4rem 0 }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #eee }
  pre { background: #262626 } a { color: #8bf } }
</style>
"""

_SCRIPT = """
const $ = id => document.getElementById(id);
const ask = async (path, body) => {
  const headers = {};
  if ($("token").value) headers.Authorization = "Bearer " + $("token").value;
  if (body) headers["Content-Type"] = "application/json";
  const reply = await fetch(path, {method: body ? "POST" : "GET", headers, body});
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error.message);
  return found;
};
"""

DOCS_PAGE = f"""<!doctype html><html lang="en"><title>rl-service: routes</title>{_STYLE}
<h1>Routes</h1>
<p>The OpenAPI document is at <a href="openapi.json">openapi.json</a>.</p>
<label for="token">Token, if the service asks for one</label><input id="token" type="password">
<div id="routes" aria-live="polite"></div>
<script>{_SCRIPT}
const element = (name, text) => Object.assign(document.createElement(name), {{textContent: text}});
const part = (title, value) => value === undefined ? [] :
  [element("p", title), element("pre", JSON.stringify(value, null, 1))];
const load = async () => {{
  try {{
    const found = await ask("openapi.json"), parts = [];
    for (const [path, methods] of Object.entries(found.paths))
      for (const [method, route] of Object.entries(methods)) {{
        const box = document.createElement("details");
        const body = route.requestBody?.content["application/json"];
        box.append(element("summary", method.toUpperCase() + " " + path + " – " + route.summary),
          ...part("Example", body?.example), ...part("Body", body?.schema),
          ...part("Reply", route.responses["200"].content["application/json"]?.schema));
        parts.push(box);
      }}
    $("routes").replaceChildren(...parts);
  }} catch (error) {{ $("routes").textContent = error.message; }}
}};
$("token").onchange = load; load();
</script></html>
"""
