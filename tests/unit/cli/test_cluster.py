"""What `cluster` says when it is interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.cli.app import main
from rl_service.cluster import jobs as control
from rl_service.cluster import local


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("up", "interrupted; what had started has ended again"),
        ("down", "interrupted; the cluster is still up; jobs that were asked to stop do so"),
    ],
)
def test_an_interruption_says_how_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    said: str,
) -> None:
    monkeypatch.setenv("RL_SERVICE_HOME", str(tmp_path))
    monkeypatch.setattr(local, "start_cluster", interrupt)
    monkeypatch.setattr(control, "stop_all_local", interrupt)
    assert main(["cluster", command]) == 130
    assert capsys.readouterr().err == f"error: {said}\n"
