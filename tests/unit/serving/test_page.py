"""The page's routes without Ray and without a browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest

from rl_service.config.settings import Settings
from rl_service.policies.registry import PolicyRegistry
from rl_service.serving.local import ReadOnlySource
from rl_service.serving.security import Tokens
from rl_service.serving.sources import RegistrySource
from rl_service.training.run import Run
from tests.conftest import WriteTestBundle
from tests.unit.serving.test_api import TOKEN, cartpole, folder, with_client

__all__ = ["folder"]

PLAY = "/v1/play"


def make_run(output_dir: Path) -> str:
    settings = Settings.model_validate(
        {"env": {"id": "CartPole-v1"}, "tracking": {"output_dir": str(output_dir)}}
    )
    run = Run.create(settings, command=[])
    for i in (1, 2):
        row = {"training_iteration": i, "num_env_steps_sampled_lifetime": 100 * i}
        run.append_progress({**row, "episode_return_mean": 10.0 * i, "time_total_s": float(i)})
    return f"{run.path.parent.name}/{run.run_id}"


def test_the_page_needs_no_token_and_all_that_it_shows_does(folder: Path, tmp_path: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        page = await client.get("/")
        assert page.headers["Content-Type"].startswith("text/html")
        for name in ("page.js", "page.css", "uPlot.iife.min.js", "uPlot.min.css"):
            assert f"static/{name}" in page.text
            found = await client.get(f"/static/{name}")
            assert (found.status_code, found.headers["X-Content-Type-Options"]) == (200, "nosniff")
            assert "'unsafe-inline'" not in found.headers["Content-Security-Policy"]
        for path in ("", "/runs", "/curves", "/experiments", "/policies/cartpole/card"):
            assert (await client.get(f"/v1{path}")).status_code == 401
        assert (await client.post(PLAY, json={"policy": "cartpole"})).status_code == 401

    tokens = Tokens(None, {"RL_SERVICE_TOKENS": f"a: {TOKEN}"})
    with_client(cartpole(folder), ask, tokens=tokens, runs=tmp_path)


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.js", "uPlot-LICENSE.txt", "%2e%2e"])
def test_only_the_pages_own_files_are_given(folder: Path, name: str) -> None:
    async def ask(client: httpx.AsyncClient) -> int:
        return (await client.get(f"/static/{name}")).status_code

    assert with_client(cartpole(folder), ask) == 404


def test_runs_are_shown_where_they_are_given(folder: Path, tmp_path: Path) -> None:
    run_id = make_run(tmp_path)

    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1")).json()["runs"] is True
        [run] = (await client.get("/v1/runs")).json()["runs"]
        assert (run["id"], run["env_steps"], run["return"]) == (run_id, 200, 20.0)
        curves = (await client.get("/v1/curves", params={"run": run_id, "x": "time"})).json()
        [group] = curves["groups"]
        assert (group["x"], group["mean"]) == ([1.0, 2.0], [10.0, 20.0])
        assert (await client.get("/v1/experiments")).json()["experiments"] == []

    with_client(cartpole(folder), ask, runs=tmp_path)


def test_without_runs_there_are_no_such_routes(folder: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        about = (await client.get("/v1")).json()
        assert (about["runs"], about["play"]) == (False, True)
        for path in ("runs", "curves?run=a", "experiments", "experiments/a"):
            assert (await client.get(f"/v1/{path}")).status_code == 404

    with_client(cartpole(folder), ask)


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("curves", 422, "ask for 1 to 50"),
        ("curves?run=" + "&run=".join(f"a/{i}" for i in range(51)), 422, "51 runs"),
        ("curves?run=a/b", 404, "a/b"),
        ("curves?run=../../etc", 404, "no run"),
        ("curves?run={run}&metric=episode_return_meen", 422, "episode_return_mean"),
        ("curves?run={run}&x=weeks", 422, "weeks"),
        ("curves?run={run}&points=1", 422, "points"),
        ("curves?run={run}&points=²", 422, "points"),
        ("experiments/nobody", 404, "nobody"),
        ("policies/walker/card", 404, "served: cartpole"),
        ("policies/cartpole:7/card", 404, "no version 7"),
    ],
)
def test_what_is_not_there_is_said(
    folder: Path, tmp_path: Path, path: str, status: int, part: str
) -> None:
    run_id = make_run(tmp_path)

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.get(f"/v1/{path.format(run=run_id)}")

    reply = with_client(cartpole(folder), ask, runs=tmp_path)
    assert reply.status_code == status
    assert part in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (PLAY, {}, 422),
        (PLAY, {"policy": "walker"}, 404),
        (PLAY, {"policy": "cartpole", "seed": -1}, 422),
        (PLAY, {"policy": "cartpole", "seed": 2**31}, 422),
        (PLAY, {"policy": "cartpole", "env": "os:system"}, 422),
        (f"{PLAY}/unknown/step", {"action": None}, 404),
        (f"{PLAY}/unknown/step", {"action": "left"}, 422),
        (f"{PLAY}/unknown/reset", {"seed": 1.5}, 422),
        (f"{PLAY}/unknown/ask", {"observation": [[0.0]]}, 422),
        (f"{PLAY}/unknown/ask", {}, 422),
    ],
)
def test_a_bad_request_to_a_play_is_refused(
    folder: Path, path: str, body: dict[str, object], status: int
) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(path, json=body)

    reply = with_client(cartpole(folder), ask)
    assert (reply.status_code, set(reply.json())) == (status, {"error"})


def test_a_card_tells_the_versions_and_who_points_where(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    for version in (1, 2):
        write_test_bundle(tmp_path / f"v{version}", seed=version)
        registry.register(tmp_path / f"v{version}", "cartpole")
    registry.promote("cartpole", 1)

    async def ask(client: httpx.AsyncClient) -> dict[str, object]:
        return dict((await client.get("/v1/policies/cartpole/card")).json())

    card = with_client(RegistrySource("cartpole", "cartpole", registry), ask)
    assert json.dumps(card).count('"cartpole"') == 1
    assert (card["policy"], card["version"]) == ("cartpole", 1)
    assert "CartPole-v1" in str(card["card"])
    assert registry.aliases("cartpole") == {"best": 1, "production": 1}
    aliases = [(each["version"], each["aliases"]) for each in card["versions"]]  # type: ignore[attr-defined]
    assert aliases == [(2, []), (1, ["best", "production"])]


def test_a_policy_that_cannot_be_read_is_said_and_hides_no_other(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    write_test_bundle(tmp_path / "v1")
    registry.register(tmp_path / "v1", "cartpole")
    source = RegistrySource("cartpole", "cartpole", registry)

    async def ask(client: httpx.AsyncClient) -> None:
        shutil.rmtree(tmp_path / "registry")
        assert (await client.get("/v1/policies")).status_code == 200
        for reply in (
            await client.get("/v1/policies/cartpole/card"),
            await client.post(PLAY, json={"policy": "cartpole"}),
        ):
            assert (reply.status_code, "Retry-After" in reply.headers) == (503, True)
            assert reply.json()["error"]["code"] == "version_unavailable"

    with_client(source, ask)


def test_who_looks_moves_no_alias(tmp_path: Path, write_test_bundle: WriteTestBundle) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    for version in (1, 2):
        write_test_bundle(tmp_path / f"v{version}", seed=version)
        registry.register(tmp_path / f"v{version}", "cartpole")
        registry.promote("cartpole", version)
    before = registry.aliases("cartpole")
    ReadOnlySource("cartpole", "cartpole", registry).give_up(2, serves=1)
    assert registry.aliases("cartpole") == before
    RegistrySource("cartpole", "cartpole", registry).give_up(2, serves=1)  # as a service does
    assert registry.aliases("cartpole") != before
