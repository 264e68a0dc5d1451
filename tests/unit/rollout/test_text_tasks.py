"""Tasks of text: what the words and the numbers say, and which layouts are held out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_service.common.errors import EnvError
from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env, try_env
from rl_service.rollout.text_tasks import is_held_out

LAKE, ROOM = "FrozenLakeMaps-v1", "BabyAIGoToText-v0"
MOVES = {0: (0, -1), 1: (1, 0), 2: (0, 1), 3: (-1, 0)}
"""FrozenLake's actions: left, down, right, up, as (row, column)."""
LEFT, RIGHT, FORWARD = 0, 1, 2


def made(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    return make_env(EnvSettings(id=env_id, kwargs=kwargs))


def lakes(seeds: range, **kwargs: Any) -> Iterator[tuple[gym.Env[Any, Any], Any, str]]:
    """The environment, its first observation and its first text, for each seed."""
    with closing(made(LAKE, **kwargs)) as env:
        for seed in seeds:
            obs, info = env.reset(seed=seed)
            yield env, obs, info["text"]


def rows_of(text: str) -> list[list[str]]:
    return [line.split(" ") for line in text.split("\n")]


def way_to_goal(rows: list[list[str]]) -> list[int]:
    """Actions of a shortest way from the first cell to the last; [] if there is none."""
    size = len(rows)
    ways: dict[tuple[int, int], list[int]] = {(0, 0): []}
    for row, column in (queue := [(0, 0)]):
        for action, (down, right) in MOVES.items():
            cell = (row + down, column + right)
            inside = all(0 <= place < size for place in cell)
            if inside and cell not in ways and rows[cell[0]][cell[1]] != "H":
                ways[cell] = [*ways[row, column], action]
                queue.append(cell)
    return ways.get((size - 1, size - 1), [])


def test_the_split_is_the_first_byte_of_sha_256() -> None:
    assert is_held_out(b"hello")  # 2c f2 4d ...
    assert not is_held_out(b"abc")  # ba 78 16 ...


@pytest.mark.parametrize("size", [4, 5])
def test_the_text_of_a_lake_says_what_the_numbers_say(size: int) -> None:
    for env, obs, text in lakes(range(20), size=size):
        rows = rows_of(text)
        assert [len(row) for row in rows] == [size] * size
        assert (rows[0][0], rows[-1][-1]) == ("P", "G")
        assert set(text.split()) <= set("PFHG")
        player, holes = obs.reshape(2, size, size)
        assert player[0, 0] == player.sum() == 1.0
        np.testing.assert_array_equal(holes == 1.0, np.array(rows) == "H")
        obs, _, _, _, info = env.step(1)
        rows[0][0], rows[1][0] = "F", "P"
        assert rows_of(info["text"]) == rows
        assert obs.reshape(2, size, size)[0, 1, 0] == 1.0


def test_every_map_has_a_way_whose_end_alone_is_rewarded() -> None:
    for env, _, text in lakes(range(50)):
        way = way_to_goal(rows_of(text))
        assert len(way) >= 6
        rewards, ends = zip(*[env.step(action)[1:3] for action in way], strict=True)
        assert rewards == (0.0,) * (len(way) - 1) + (1.0,)
        assert ends == (False,) * (len(way) - 1) + (True,)


def test_a_hole_ends_an_episode_without_reward() -> None:
    in_hole = 0
    for env, _, text in lakes(range(50)):
        if rows_of(text)[0][1] == "H":
            assert env.step(2)[1:4] == (0.0, True, False)
            in_hole += 1
    assert in_hole >= 3


def test_a_seed_gives_a_map_and_each_episode_has_another() -> None:
    texts = [text for _, _, text in lakes(range(30))]
    assert texts == [text for _, _, text in lakes(range(30))]
    assert len(set(texts)) >= 25
    with closing(made(LAKE)) as env:
        env.reset(seed=0)
        assert len({env.reset()[1]["text"] for _ in range(30)}) >= 25


def test_held_out_maps_are_never_trained_on() -> None:
    ours, theirs = (
        {text for _, _, text in lakes(range(400), held_out=held_out)} for held_out in (False, True)
    )
    assert min(len(ours), len(theirs)) > 100
    assert not ours & theirs
    assert all(is_held_out(layout(text)) for text in theirs)
    assert not any(is_held_out(layout(text)) for text in ours)


def layout(text: str) -> bytes:
    """The map as gymnasium writes it."""
    return text.replace("P", "S").replace(" ", "").encode()


def test_two_of_three_moves_on_slippery_ice_go_to_a_side() -> None:
    ends = []
    for env, _, _ in lakes(range(1500), slippery=True):
        ends.append(int(env.step(2)[0][:16].argmax()))
    shares = [ends.count(cell) / len(ends) for cell in (0, 1, 4)]  # up is a wall; right; down
    assert sum(shares) == pytest.approx(1.0)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.05)


def test_a_lake_has_the_time_limit_of_frozenlake_and_is_drawn() -> None:
    settings = EnvSettings(id=LAKE)
    try_env(settings)
    with closing(make_env(settings, render_mode="rgb_array")) as env:
        for seed in (1, 2):  # each map is drawn anew
            env.reset(seed=seed)
            assert env.render().shape == (256, 256, 3)  # type: ignore[union-attr]
        steps = [env.step(0)[2:4] for _ in range(100)]  # against the wall
    assert steps == [(False, False)] * 99 + [(False, True)]


def test_a_lake_with_too_few_maps_is_refused() -> None:
    with pytest.raises(EnvError, match="size=3 leaves too few maps to hold some out"):
        made(LAKE, size=3)


def test_a_task_says_what_it_needs_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid.envs.babyai", None)
    with pytest.raises(EnvError, match=r"pip install 'rl-service\[text\]'"):
        made(ROOM)


@pytest.fixture
def minigrid() -> Any:
    return pytest.importorskip("minigrid", reason="needs the extra `text`")


def rooms(seeds: range, **kwargs: Any) -> Iterator[tuple[gym.Env[Any, Any], str]]:
    with closing(made(ROOM, **kwargs)) as env:
        for seed in seeds:
            yield env, env.reset(seed=seed)[1]["text"]


def place(env: gym.Env[Any, Any], objects: dict[tuple[int, int], Any]) -> None:
    """Empties the room and puts objects at (column, row); the agent looks right from (2, 4)."""
    from minigrid.core.grid import Grid

    level: Any = env.unwrapped
    level.grid = Grid(6, 6)
    level.grid.wall_rect(0, 0, 6, 6)
    for (column, row), thing in objects.items():
        level.grid.set(column, row, thing)
    level.agent_pos, level.agent_dir = (2, 4), 0


def test_the_text_of_a_known_room(minigrid: Any) -> None:
    from minigrid.core.world_object import Ball, Key

    [(env, text)] = rooms(range(1))
    mission = text.partition(".")[0]
    place(env, {(1, 1): Ball("red"), (3, 2): Key("grey"), (2, 3): Ball("blue")})
    obs, _, _, _, info = env.step(LEFT)
    assert info["text"] == (
        f"{mission}. You see: blue ball 1 forward; grey key 2 forward 1 right; "
        "red ball 3 forward 1 left"
    )
    named, cells = obs[:9], obs[9:].reshape(7, 7, 9)  # key, ball, box; six colors
    color, kind = mission.split()[-2:]
    names = ["key", "ball", "box", "red", "green", "blue", "purple", "yellow", "grey"]
    assert named.tolist() == [float(name in (color, kind)) for name in names]
    expected = np.zeros((7, 7, 9))
    for row, column, entries in ((5, 3, (1, 5)), (4, 4, (0, 8)), (3, 2, (1, 3))):
        expected[row, column, list(entries)] = 1.0
    np.testing.assert_array_equal(cells, expected)
    place(env, {(1, 1): Ball("red")})
    assert env.step(RIGHT)[4]["text"] == f"{mission}. You see: nothing"  # it looks down


def towards(text: str) -> int:
    """The action of one who reads only the text, in a room with one object."""
    seen = text.partition("You see: ")[2].split()
    if seen == ["nothing"]:
        return LEFT
    forward = int(seen[seen.index("forward") - 1]) if "forward" in seen else 0
    if "right" in seen or "left" in seen:
        side = RIGHT if "right" in seen else LEFT
        return FORWARD if forward > 0 else side
    return FORWARD


def test_the_text_is_enough_to_find_the_object(minigrid: Any) -> None:
    """It walks up to the object's row, then turns to it."""
    for env, start in rooms(range(40), num_objects=1):
        text, reward, done = start, 0.0, False
        while not done:
            _, step_reward, terminated, truncated, info = env.step(towards(text))
            text, done, reward = info["text"], terminated or truncated, float(step_reward)
            assert reward == float(terminated)
        assert reward == 1.0


def test_a_room_is_drawn(minigrid: Any) -> None:
    frames: list[Any] = []
    with closing(make_env(EnvSettings(id=ROOM), render_mode="rgb_array")) as env:
        env.reset(seed=1)
        frames.append(env.render())
        env.step(LEFT)
        frames.append(env.render())
    assert [frame.shape for frame in frames] == [(192, 192, 3)] * 2
    assert (frames[0] != frames[1]).any()


def test_an_agent_that_does_not_look_is_cut_off(minigrid: Any) -> None:
    [(env, _)] = rooms(range(1))
    steps = [env.step(LEFT)[1:4] for _ in range(36)]
    assert steps == [(0.0, False, False)] * 35 + [(0.0, False, True)]


def test_held_out_rooms_are_never_trained_on(minigrid: Any) -> None:
    def states(held_out: bool) -> set[str]:
        kwargs = {"room_size": 5, "num_objects": 1, "held_out": held_out}
        return {
            env.unwrapped.hash() + text.partition(".")[0]  # type: ignore[attr-defined]
            for env, text in rooms(range(400), **kwargs)
        }

    ours, theirs = states(False), states(True)
    assert min(len(ours), len(theirs)) > 200
    assert not ours & theirs


def test_a_seed_gives_a_room_and_nothing_is_printed(
    minigrid: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    try_env(EnvSettings(id=ROOM))
    texts = [text for _, text in rooms(range(300), num_objects=6)]
    assert texts == [text for _, text in rooms(range(300), num_objects=6)]
    assert len(set(texts)) > 250
    assert capsys.readouterr().out == ""


def test_a_room_that_cannot_hold_its_objects_is_refused(minigrid: Any) -> None:
    for kwargs in ({"room_size": 4}, {"num_objects": 7}, {"num_objects": 0}):
        with pytest.raises(EnvError, match="are out of range; give a room of 5 to 8 cells"):
            made(ROOM, **kwargs)
