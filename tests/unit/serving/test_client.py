"""Both clients send the same, try again where that helps, and only there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from rl_service.serving import client as client_module
from rl_service.serving.client import AsyncPolicyClient, PolicyClient, PolicyServiceError

REPLY = {"action": [0.5], "log_prob": -1.0, "policy": "p", "version": 2, "request_id": "r"}
BUSY = {"error": {"code": "busy", "message": "come again", "request_id": "r"}}
Handler = Callable[[httpx.Request], httpx.Response]
Act = Callable[[Handler], object]


def act(handler: Handler) -> object:
    transport = httpx.MockTransport(handler)
    with PolicyClient("http://test", "secret", patience_s=2.0, transport=transport) as client:
        return client.act("p", np.zeros(3, np.float32))


def act_async(handler: Handler) -> object:
    async def play() -> object:
        transport = httpx.MockTransport(handler)
        client = AsyncPolicyClient("http://test", "secret", patience_s=2.0, transport=transport)
        async with client:
            return await client.act("p", np.zeros(3, np.float32))

    return asyncio.run(play())


@pytest.fixture(params=[act, act_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Act:
    return request.param


def test_it_tries_again_with_the_same_request_id(ask: Act) -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) == 1:
            raise httpx.ConnectError("refused")
        if len(seen) == 2:
            return httpx.Response(500, text="Internal Server Error")  # the proxy's
        return httpx.Response(200, json=REPLY)

    answered = ask(handler)
    assert answered.version == 2  # type: ignore[attr-defined]
    assert answered.action.dtype == np.float32  # type: ignore[attr-defined]
    assert len({request.headers["X-Request-ID"] for request in seen}) == 1
    assert {request.headers["Authorization"] for request in seen} == {"Bearer secret"}


def test_it_waits_as_long_as_it_is_told(ask: Act) -> None:
    replies = iter(
        [
            httpx.Response(503, json=BUSY, headers={"Retry-After": "1"}),
            httpx.Response(200, json=REPLY),
        ]
    )
    times: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        times.append(client_module.time.monotonic())
        return next(replies)

    ask(handler)
    assert times[1] - times[0] >= 1.0


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 415, 422])
def test_a_refusal_is_told_at_once(ask: Act, status: int) -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, json=BUSY)

    with pytest.raises(PolicyServiceError, match="come again") as refused:
        ask(handler)
    assert (refused.value.status, refused.value.code, len(seen)) == (status, "busy", 1)


def test_a_proxy_that_starts_again_is_waited_for(ask: Act) -> None:
    replies = iter(
        [httpx.Response(404, text="Path '/v1' not found"), httpx.Response(200, json=REPLY)]
    )
    assert ask(lambda request: next(replies)).version == 2  # type: ignore[attr-defined]


def test_its_patience_ends(ask: Act) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(PolicyServiceError, match="refused"):
        ask(handler)


def sent(**arguments: Any) -> list[Any]:
    """Bodies of `act` and `act_batch`, of both clients."""
    bodies: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=REPLY | {"actions": [0, 1], "log_prob": -1.0})

    async def play() -> None:
        async with AsyncPolicyClient(
            "http://test", transport=httpx.MockTransport(handler)
        ) as client:
            await client.act("p", [0.0, 0.5], **arguments)
            await client.act_batch("p", [[0.0, 0.5]], **arguments)

    with PolicyClient("http://test", transport=httpx.MockTransport(handler)) as client:
        client.act("p", [0.0, 0.5], **arguments)
        client.act_batch("p", [[0.0, 0.5]], **arguments)
    asyncio.run(play())
    return bodies


@pytest.mark.parametrize(
    "history",
    [
        {"observations": np.array([[1, 0.5]], np.float32), "actions": np.array([1])},
        {"observations": [np.array([1.0, 0.5])], "actions": [np.int64(1)]},
        {"observations": ((1.0, 0.5),), "actions": (1,)},
    ],
    ids=["arrays", "lists of arrays", "tuples"],
)
def test_a_history_may_hold_arrays(history: Any) -> None:
    as_lists = {"observations": [[1.0, 0.5]], "actions": [1]}
    assert [body["history"] for body in sent(history=history)] == [as_lists] * 4
    assert [body["history"] for body in sent(history=[history])] == [[as_lists]] * 4


@pytest.mark.parametrize("value", [np.nan, np.inf, object()], ids=["NaN", "infinite", "no number"])
def test_what_is_no_number_is_refused_with_the_clients_own_error(value: Any) -> None:
    async def play(client: AsyncPolicyClient) -> None:
        async with client:
            await client.act("p", [value])

    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=REPLY))
    client = PolicyClient("http://test", transport=transport)
    for ask in (
        lambda: client.act("p", [value]),
        lambda: client.act_batch("p", [[value]]),
        lambda: client.act("p", [0.0], history={"observations": [[value]], "actions": [0]}),
        lambda: asyncio.run(play(AsyncPolicyClient("http://test", transport=transport))),
    ):
        with pytest.raises(
            PolicyServiceError, match=r"not sent: .*; give finite numbers"
        ) as refused:
            ask()
        assert (refused.value.status, refused.value.code) == (0, "invalid_request")
    client.close()


def test_a_name_is_one_part_of_the_path() -> None:
    seen: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(200, json=REPLY)

    with PolicyClient("http://test", transport=httpx.MockTransport(handler)) as client:
        for name in ("lander:3", "a/b?c#d", "größe"):
            client.act(name, [0.0])
    assert seen == [
        b"/v1/policies/lander:3/act",
        b"/v1/policies/a%2Fb%3Fc%23d/act",
        b"/v1/policies/gr%C3%B6%C3%9Fe/act",
    ]
