"""Texts over HTTP, and actions that are texts, against the application without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import jsonschema_rs
import numpy as np
import pytest
from gymnasium import spaces

from custom_models.text_rows import text_row
from rl_service.policies import load_bundle
from tests.support.language_models import READER
from tests.support.serving import ask, write_for_spaces

ACT = "/v1/policies/p/act"


def test_a_text_brings_its_actions(tmp_path: Path) -> None:
    write_for_spaces(tmp_path / "b", spaces.Text(40), spaces.Discrete(20))
    policy = load_bundle(tmp_path / "b")
    mask = np.arange(20) < 3
    row = text_row("A door.", ["open", "wait", "go"], 40)
    expected = policy.act(row[None], deterministic=True, mask=mask[None])
    given = {"text": "A door.", "admissible_actions": ["open", "wait", "go"]}

    async def asking(client: httpx.AsyncClient) -> None:
        reply = (await client.post(ACT, json={"observation": given})).json()
        assert reply["action"] == expected.env_actions[0]
        assert reply["log_prob"] == pytest.approx(float(expected.log_prob[0]), abs=1e-6)
        body = {"observations": [given] * 300, "deterministic": False}
        assert set((await client.post(ACT, json=body)).json()["actions"]) == {0, 1, 2}
        wrong = {**given, "text": "a\x1eb"}
        refused = await client.post(ACT, json={"observation": wrong})
        assert refused.status_code == 422
        assert "U+001E" in refused.json()["error"]["message"]
        document = (await client.get("/openapi.json")).json()
        content = document["paths"][ACT]["post"]["requestBody"]["content"]["application/json"]
        documented = jsonschema_rs.Draft202012Validator(content["schema"])
        assert documented.is_valid({"observation": given})
        assert documented.is_valid(content["example"])
        assert not documented.is_valid({"observation": {"text": "A door."}})

    ask(tmp_path / "b", asking)


def test_a_language_model_chooses_among_the_actions_of_the_request(tmp_path: Path) -> None:
    model = READER.model_copy(update={"max_prompt_tokens": 60})
    write_for_spaces(tmp_path / "b", spaces.Text(200), spaces.Discrete(20), model)
    given = {"text": "A door.", "admissible_actions": ["open it", "wait"]}
    turned = {"text": "A door.", "admissible_actions": ["wait", "open it"]}

    async def asking(client: httpx.AsyncClient) -> None:
        body = {"observations": [given, turned], "deterministic": False}
        replies = [(await client.post(ACT, json=body)).json() for _ in range(30)]
        assert {action for reply in replies for action in reply["actions"]} == {0, 1}
        fine = client.post(ACT, json={"observation": given})
        long = client.post(ACT, json={"observation": {**given, "text": "a" * 100}})
        good, refused = await asyncio.gather(fine, long)  # in one pass
        assert (good.status_code, refused.status_code) == (200, 422)
        assert "model.max_prompt_tokens=60" in refused.json()["error"]["message"]

    ask(tmp_path / "b", asking)
