"""`rl-service serve` refuses what cannot work before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_service.cli.app import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["no/such/folder"], "does not exist"),
        (["zoo:lunarlunar"], "did you mean zoo:lunarlander"),
        (["not-registered", "--registry", "{tmp}"], "not in the registry"),
        (["zoo:lunarlander", "zoo:lunarlander"], "two policies"),
        (["zoo:lunarlander", "--replicas", "0"], "--replicas 0"),
        (["zoo:lunarlander", "--replicas", "3:2"], "--replicas 3:2"),
        (["zoo:lunarlander", "--canary", "many"], "--canary many"),
        (["zoo:lunarlander", "--canary", "101%"], "--canary 101%"),
        (["zoo:lunarlander", "--host", "0.0.0.0"], "needs tokens"),
        (["zoo:lunarlander", "--token-file", "{tmp}/none"], "cannot be read"),
        (["zoo:lunarlander", "--port", "70000"], "--port"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str],
    said: str,
    in_tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RL_SERVICE_TOKENS", raising=False)
    given = [argument.format(tmp=in_tmp_path) for argument in arguments]
    assert main(["serve", *given]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
