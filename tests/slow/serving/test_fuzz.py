"""What nobody would think of asking: schemathesis makes requests of the OpenAPI document."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

import pytest

from tests.conftest import WriteTestBundle
from tests.support.serving import Versions, build_local

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies' deprecations, when it is imported
    import schemathesis
    from hypothesis import HealthCheck, Phase, settings

EXAMPLES_PER_OPERATION = 40
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize("mode", MODES, ids=["as described", "not as described"])
def test_no_request_makes_the_service_fail(
    mode: schemathesis.GenerationMode, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "a")
    write_test_bundle(tmp_path / "b", "Pendulum-v1")
    sources = [Versions(name, {1: tmp_path / name}) for name in ("a", "b")]
    app, _, _ = asyncio.run(build_local(*sources))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    num_operations = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        num_operations += 1
        if operation.body or mode == MODES[0]:  # any path is as described
            _fuzz(operation.as_strategy(generation_mode=mode))
    assert num_operations == 10


def _fuzz(strategy: object) -> None:
    from hypothesis import given

    @settings(
        max_examples=EXAMPLES_PER_OPERATION,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)  # type: ignore[arg-type]
    def ask(case: schemathesis.Case) -> None:
        reply = case.call()
        assert reply.status_code < 500, (reply.status_code, reply.text)
        if reply.status_code >= 400:
            assert reply.json()["error"].keys() == {"code", "message", "request_id"}

    ask()
