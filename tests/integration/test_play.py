"""Plays in processes of their own: replies, limits, and processes that die, hang or print."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rl_service.page.child import PlayError
from rl_service.page.play import PlayRoom, PlayTimes
from tests.conftest import WriteTestBundle
from tests.support import faulty_envs
from tests.support.bundles import edit_spec

PATIENT = {"start_s": 200.0, "request_s": 100.0}
"""Of machines that are busy with other tests."""
SUPPORT = "tests.support.faulty_envs"

HOLD_A_PLAY = """
import asyncio, sys
from pathlib import Path
from rl_service.page.play import PlayRoom, PlayTimes

async def main():
    room = PlayRoom([sys.argv[2]], times=PlayTimes(start_s=200.0, request_s=1000.0))
    opened = await room.open("p", Path(sys.argv[1]), None, 0)
    print("open", flush=True)
    await room.step(opened["play"], None)

asyncio.run(main())
"""


def in_a_room(scenario: Callable[[PlayRoom], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        room = PlayRoom(**{"times": PlayTimes(**PATIENT), **options})
        try:
            await scenario(room)
        finally:
            await room.shutdown()

    asyncio.run(run())
    assert players() == []


def players(parent: int | None = None) -> list[int]:
    """Ids of the living processes of plays that a process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            status = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # has ended in the meantime
            continue
        is_ours = int(status[1]) == (parent or os.getpid())
        if is_ours and b"rl_service.page.player" in command and status[0] != "Z":
            found.append(int(folder.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def tell(bundle: Path, folder: Path) -> None:
    """The bundle's environment does what files in the folder say."""
    env = {"id": f"{SUPPORT}:Told", "kwargs": {"folder": str(folder)}}
    edit_spec(bundle, lambda spec: spec["env"].update(env))


@pytest.fixture
def bundle(tmp_path: Path, write_test_bundle: WriteTestBundle) -> Path:
    write_test_bundle(tmp_path / "p")
    return tmp_path / "p"


def test_a_play_answers_its_requests_one_after_another(bundle: Path) -> None:
    async def scenario(room: PlayRoom) -> None:
        opened = await room.open("cart", bundle, None, 7)
        play = opened["play"]
        assert (opened["policy"], opened["env"], opened["step"]) == ("cart", "CartPole-v1", 0)
        assert len(play) >= 20
        states = await asyncio.gather(*(room.step(play, 1) for _ in range(3)))
        assert [state["step"] for state in states] == [1, 2, 3]
        asked = await room.ask(play, [0.0] * 4)
        assert sum(asked["probabilities"]) == pytest.approx(1.0)
        again = await room.reset(play, 7)
        assert again == {key: opened[key] for key in again}
        for request, code in (
            (room.step(play, 5), "invalid_request"),
            (room.step(play, object()), "invalid_request"),
            (room.ask(play, [0.0]), "invalid_request"),
            (room.reset(play, -1), "invalid_request"),
            (room.step("other", None), "unknown_play"),
        ):
            with pytest.raises(PlayError) as refused:
                await request
            assert refused.value.code == code
        impatient = asyncio.create_task(room.step(play, 0))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await room.reset(play, 7)) == again  # and not the answer that nobody waited for
        assert await room.close(play) == {}
        with pytest.raises(PlayError, match="no such play"):
            await room.close(play)

    in_a_room(scenario)


def test_no_more_plays_than_there_is_room_for_until_one_ends(bundle: Path) -> None:
    async def scenario(room: PlayRoom) -> None:
        opening = [asyncio.create_task(room.open("p", bundle, None, 0)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(PlayError) as refused:
            await room.open("p", bundle, None, 0)
        assert (refused.value.code, refused.value.status) == ("too_many_plays", 503)
        first, second = [opened["play"] for opened in await asyncio.gather(*opening)]
        await room.close(first)
        wait_until(lambda: len(players()) == 1)
        [killed] = players()
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(PlayError, match="SIGKILL") as failed:
            await room.step(second, None)
        assert (failed.value.code, failed.value.status) == ("play_failed", 503)
        opened = await room.open("p", bundle, None, 0)
        [killed] = players()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: players() == [])
        await room.open("p", bundle, None, 0)
        await room.open("p", bundle, None, 0)  # the dead one takes no place
        with pytest.raises(PlayError, match="no such play"):
            await room.step(opened["play"], None)

    in_a_room(scenario, max_plays=2)


def test_an_idle_play_ends(bundle: Path) -> None:
    async def scenario(room: PlayRoom) -> None:
        play = (await room.open("p", bundle, None, 0))["play"]
        assert (await room.step(play, None))["step"] == 1
        while players():
            await asyncio.sleep(0.05)
        with pytest.raises(PlayError, match="1 s after its last request") as gone:
            await room.step(play, None)
        assert (gone.value.code, gone.value.status) == ("unknown_play", 404)

    in_a_room(scenario, times=PlayTimes(**PATIENT, idle_s=1.0))


@pytest.mark.parametrize("times", [{"start_s": 0.1}, {"age_s": 0.1}], ids=str)
def test_a_play_that_takes_too_long_to_start_is_ended(
    bundle: Path, times: dict[str, float]
) -> None:
    async def scenario(room: PlayRoom) -> None:
        with pytest.raises(PlayError) as failed:
            await room.open("p", bundle, None, 0)
        assert failed.value.code == "play_failed"

    in_a_room(scenario, times=PlayTimes(**PATIENT | times))


def test_an_environment_that_raises_or_hangs_ends_its_play(bundle: Path, tmp_path: Path) -> None:
    tell(bundle, tmp_path)

    async def scenario(room: PlayRoom) -> None:
        for fault, message in (
            (faulty_envs.RAISES, r"step 1: RuntimeError: the motor is stuck$"),
            (faulty_envs.HANGS, "no answer within 3 s"),
        ):
            play = (await room.open("p", bundle, None, 0))["play"]
            (tmp_path / fault).touch()
            with pytest.raises(PlayError, match=message) as failed:
                await room.step(play, None)
            assert (failed.value.code, failed.value.status) == ("play_failed", 503)
            with pytest.raises(PlayError, match="no such play"):
                await room.step(play, None)

    times = PlayTimes(start_s=200.0, request_s=3.0)
    in_a_room(scenario, allow_modules=[SUPPORT], max_plays=1, times=times)


def test_what_an_environment_has_started_ends_with_its_play(bundle: Path, tmp_path: Path) -> None:
    env = {"id": f"{SUPPORT}:Spawning", "kwargs": {"folder": str(tmp_path)}}
    edit_spec(bundle, lambda spec: spec["env"].update(env))

    async def scenario(room: PlayRoom) -> None:
        await room.open("p", bundle, None, 0)
        command = Path("/proc", (tmp_path / "spawned").read_text(), "cmdline")
        assert b"sleep" in command.read_bytes()
        await room.shutdown()
        wait_until(lambda: not command.exists() or not command.read_bytes())  # a zombie's is empty

    in_a_room(scenario, allow_modules=[SUPPORT])


def test_a_refusal_can_leave_an_actor() -> None:
    refusal = pickle.loads(pickle.dumps(PlayError("unknown_play", 404, "no such play")))
    assert (refusal.code, refusal.status, str(refusal)) == ("unknown_play", 404, "no such play")


def test_what_an_environment_prints_and_reads_is_not_a_part_of_the_protocol(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy_cart_pole.py").write_text(
        "import os, sys, warnings\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Noisy(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        print('a step', flush=True)\n"
        "        os.write(1, b'{}\\n')\n"
        "        warnings.warn('a step')\n"
        "        assert sys.stdin.read() == ''\n"
        "        return super().step(action)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # where the child finds it, too
    edit_spec(bundle, lambda spec: spec["env"].update(id="noisy_cart_pole:Noisy"))

    async def scenario(room: PlayRoom) -> None:
        play = (await room.open("p", bundle, None, 0))["play"]
        assert [(await room.step(play, None))["step"] for _ in range(3)] == [1, 2, 3]

    in_a_room(scenario, allow_modules=["noisy_cart_pole"])


def test_a_bundle_that_cannot_be_played_is_refused_with_the_reason(
    bundle: Path, tmp_path: Path
) -> None:
    tell(bundle, tmp_path)

    async def scenario(room: PlayRoom) -> None:
        for path, reason in ((bundle, f"--allow-module {SUPPORT}"), (tmp_path / "no", "no such")):
            with pytest.raises(PlayError, match=reason) as refused:
                await room.open("p", path, None, 0)
            assert (refused.value.code, refused.value.status) == ("not_playable", 422)
        await room.shutdown()
        with pytest.raises(PlayError, match="shutting down"):
            await room.open("p", bundle, None, 0)

    in_a_room(scenario)


def test_a_server_that_is_killed_leaves_no_play_even_if_its_environment_hangs(
    bundle: Path, tmp_path: Path
) -> None:
    tell(bundle, tmp_path)
    hangs = tmp_path / faulty_envs.HANGS
    hangs.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_A_PLAY, str(bundle), SUPPORT], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"open\n"
        [player] = players(server.pid)
        wait_until(lambda: not hangs.exists())
        server.kill()
    wait_until(lambda: not Path(f"/proc/{player}/exe").exists())
