"""Bodies are read strictly; whatever comes, the answer is a refusal and never another error."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
from pydantic import ValidationError

from custom_models.spaces import ActionSpec
from rl_service.policies.observing import ObservationReader
from rl_service.policies.simple_spaces import BoxSpec, DiscreteSpec
from rl_service.serving.inputs import (
    act_body,
    as_array,
    read_body,
    read_histories,
    session_act_body,
)
from rl_service.serving.refusals import RequestError

TWO_ACTIONS = ActionSpec("discrete", 2)


def box(*shape: int) -> BoxSpec:
    bounds = (None,) * math.prod(shape)
    return BoxSpec(shape=shape, low=bounds, high=bounds)


ACT = act_body(box(2), TWO_ACTIONS, 8)

BAD_BODIES = {
    "empty": b"",
    "no JSON": b"observation=1",
    "no UTF-8": b'{"observation": "\xff"}',
    "null": b"null",
    "a list": b"[1, 2]",
    "a text": b'{"observation": "1, 2"}',
    "a text in a list": b'{"observation": ["1", 2]}',
    "a bool": b'{"observation": [true, 2]}',
    "NaN": b'{"observation": [NaN, 2]}',
    "infinity": b'{"observation": [1e999, 2]}',
    "a long number": b'{"observation": [' + b"9" * 5000 + b"]}",
    "too deep": b'{"observation": [[1, 2]]}',
    "much too deep": b'{"observation": ' + b"[" * 100_000,
    "a surplus key": b'{"observation": [1, 2], "path": "/etc/passwd"}',
    "another flag": b'{"observation": [1, 2], "deterministic": 1}',
    "another history": b'{"observation": [1, 2], "history": [[1, 2]]}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_bad_body_is_refused_with_what_is_expected(body: bytes) -> None:
    with pytest.raises(RequestError, match="two numbers") as refused:
        read_body(ACT, body, "two numbers")
    assert refused.value.status in (400, 422)
    assert len(refused.value.message) < 1000


TOO_MUCH = {
    "values": b'{"observation": [' + b"0," * 600_000 + b"0]}",
    "lists": b'{"observations": [' + b"[]," * 200_000 + b"[]]}",
    "keys": b"{" + b",".join(b'"%d":0' % i for i in range(30_000)) + b"}",
}


@pytest.mark.parametrize(("what", "body"), TOO_MUCH.items(), ids=TOO_MUCH)
def test_what_would_take_long_to_read_is_not_read(what: str, body: bytes) -> None:
    with pytest.raises(RequestError, match=f"has more than [0-9]+,000 {what}; send less"):
        read_body(ACT, body, "")


def test_one_bad_item_of_a_long_list_is_enough() -> None:
    """Collecting an error for each item took 20 seconds for a body of 4 MB."""
    for key in ("observation", "observations", "history"):
        text = json.dumps({key: ["a"] * 1000})
        with pytest.raises(ValidationError) as refused:
            ACT.model_validate_json(text)
        assert refused.value.error_count() <= 2


def test_of_a_long_history_only_the_last_steps_become_rows() -> None:
    """One number of JSON is a row of 2000 here: 100,000 of them took 800 MB."""
    space = DiscreteSpec(n=2000)
    given = {"observations": [7] * 99_998 + [8, 9], "actions": [1] * 100_000}
    body = {"observation": 7, "history": given}
    request = read_body(act_body(space, TWO_ACTIONS, 8), json.dumps(body).encode(), "")
    reader = ObservationReader(space, TWO_ACTIONS, uses_masks=True)
    row, _ = reader.read(7)
    tracemalloc.start()
    history = read_histories([request.history], row[None], reader, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert history is not None
    assert history.obs.argmax(-1).tolist() == [[8, 9, 7]]
    assert history.num_steps.tolist() == [2]
    assert peak < 10e6


def test_numbers_are_read_as_they_are() -> None:
    body = json.dumps({"observations": [[1, 2.5], [-3, 0]], "deterministic": False}).encode()
    request = read_body(ACT, body, "")
    assert request.observations == [[1.0, 2.5], [-3.0, 0.0]]
    assert not request.deterministic


def test_history_has_actions_of_the_policys_kind() -> None:
    history = {"observations": [[1.0]], "actions": [[0.5]]}
    body = json.dumps({"observation": [1.0], "history": history}).encode()
    assert read_body(act_body(box(1), ActionSpec("box", 1), 8), body, "").history.actions == [[0.5]]
    with pytest.raises(RequestError):
        read_body(ACT, body, "")


def test_a_scalar_observation_is_a_number() -> None:
    scalar = session_act_body(box(), TWO_ACTIONS)
    assert read_body(scalar, b'{"observation": 2}', "").observation == 2.0
    table = session_act_body(box(2, 2), TWO_ACTIONS)
    rows = read_body(table, b'{"observation": [[2, 1], [0.5, 3]]}', "").observation
    assert rows == [[2.0, 1.0], [0.5, 3.0]]


def test_float32_survives_the_way_through_json() -> None:
    row = np.random.default_rng(0).normal(size=100).astype(np.float32)
    [back] = as_array(json.loads(json.dumps([row.tolist()])), (100,), "rows")
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, row)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([[1.0, 2.0], [1.0]], "wrong_shape"),
        ([[1.0, 2.0, 3.0]], "wrong_shape"),
        ([[]], "wrong_shape"),
        ([[1e39, 0.0]], "not_finite"),
    ],
)
def test_rows_of_another_shape_or_size_are_refused(rows: list[list[float]], code: str) -> None:
    with pytest.raises(RequestError) as refused:
        as_array(rows, (2,), "observations")
    assert (refused.value.status, refused.value.code) == (422, code)


def test_no_rows_are_an_empty_array() -> None:
    assert as_array([], (2,), "observations").shape == (0, 2)
