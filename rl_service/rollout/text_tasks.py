"""Tasks that can be read as text or as numbers, with layouts that training never sees.

Importing this module registers them in gymnasium:

- `FrozenLakeMaps-v1`: gymnasium's FrozenLake on a new random map in each episode.
- `BabyAIGoToText-v0`: MiniGrid's `BabyAI-GoToLocal`, in the package's extra `text`.

Observations are numbers; `info["text"]` says the same in words, at each reset and step. The reward
is 1 for success and 0 otherwise, so that a mean return is a success rate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from custom_models.spaces import FloatArray

_LARGEST_SEED = 2**31


def is_held_out(layout: bytes) -> bool:
    """Whether a layout is one of the quarter that is kept for evaluations.

    It depends on the layout alone, so that no seed, release or machine moves one across.
    """
    return hashlib.sha256(layout).digest()[0] < 64


class FrozenLakeMaps(gym.Env[FloatArray, np.int64]):
    """FrozenLake on a random map that has a way to the goal, a new one in each episode.

    The observation has two entries for each of the size x size cells, row by row: first whether
    the player is there (size * size,), then whether there is a hole (size * size,). The goal is
    always the last cell. The text is the map in letters: P the player, F ice, H a hole, G the goal.

    Args:
        size: of the map's side, in cells, at least 4.
        slippery: whether two of three moves go to a side.
        held_out: play the maps of `is_held_out` instead of all others.
        render_mode: gymnasium's.
    """

    metadata = FrozenLakeEnv.metadata

    def __init__(
        self,
        size: int = 4,
        slippery: bool = False,
        held_out: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if size < 4:
            raise ValueError(f"size={size} leaves too few maps to hold some out; give at least 4")
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2 * size * size,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self._size, self._slippery, self._held_out = size, slippery, held_out
        self._lake: FrozenLakeEnv | None = None

    @property
    def cells(self) -> str:
        """The map's letters as gymnasium writes them, row by row: S, F, H and G."""
        assert self._lake is not None, "reset the environment first"
        return bytes(self._lake.desc).decode()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        self._lake = FrozenLakeEnv(self.render_mode, self._draw_map(), is_slippery=self._slippery)
        state, _ = self._lake.reset(seed=int(self.np_random.integers(_LARGEST_SEED)))
        return self._observed(state), {"text": self._text(state)}

    def step(self, action: np.int64) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        assert self._lake is not None, "reset the environment first"
        state, reward, done, _, _ = self._lake.step(int(action))
        return self._observed(state), float(reward), done, False, {"text": self._text(state)}

    def render(self) -> Any:
        assert self._lake is not None, "reset the environment first"
        return self._lake.render()

    def close(self) -> None:
        if self._lake is not None:
            self._lake.close()

    def _draw_map(self) -> list[str]:
        while True:
            seed = int(self.np_random.integers(_LARGEST_SEED))
            rows = generate_random_map(self._size, seed=seed)
            if is_held_out("\n".join(rows).encode()) == self._held_out:
                return rows

    def _observed(self, state: int) -> FloatArray:
        player = np.arange(self._size**2) == state
        holes = np.array([cell == "H" for cell in self.cells])
        return np.concatenate([player, holes]).astype(np.float32)

    def _text(self, state: int) -> str:
        cells = list(self.cells.replace("S", "F"))
        cells[state] = "P"
        return "\n".join(
            " ".join(cells[start : start + self._size])
            for start in range(0, len(cells), self._size)
        )


_TYPES = ("key", "ball", "box")
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_NAMES = (*_TYPES, *_COLORS)
_FIRST_TYPE = 5
"""MiniGrid's number of a key; ball and box follow."""
_VIEW = 7
"""Side of the agent's view, in cells; the agent is in the middle of its nearest row."""


class NamedObject(gym.Wrapper[FloatArray, np.int64, dict[str, Any], int]):
    """MiniGrid's `BabyAI-GoToLocal`: go to one of the objects of a room, the one that is named.

    The agent sees 7 x 7 cells ahead of it. An object is one-hot in its type (3: key, ball, box) and
    color (6: red, green, blue, purple, yellow, grey). The observation (450,) is the object that
    is asked for (9,), then that of each cell (7, 7, 9), rows from far to near and cells from left
    to right, zero where there is none. The text says the same: "go to the red ball. You see: grey
    key 2 forward 1 left; red ball 1 right".

    Actions are turn left, turn right and go forward.

    Args:
        level: of MiniGrid.
        held_out: play the rooms of `is_held_out` instead of all others.
    """

    def __init__(self, level: gym.Env[dict[str, Any], int], held_out: bool) -> None:
        super().__init__(level)
        size = (1 + _VIEW**2) * len(_NAMES)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self._held_out = held_out

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        obs, _ = self.env.reset(seed=seed, options=options)
        while is_held_out(self._layout()) != self._held_out:
            obs, _ = self.env.reset()
        return _numbers(obs), {"text": _words(obs)}

    def step(self, action: np.int64) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.env.step(int(action))
        return _numbers(obs), float(float(reward) > 0), terminated, truncated, {"text": _words(obs)}

    def _layout(self) -> bytes:
        """What the episode starts from: the room, the agent's place and direction, the mission."""
        level: Any = self.unwrapped
        x, y = level.agent_pos
        pose = bytes([int(x), int(y), int(level.agent_dir)])
        return bytes(level.grid.encode().tobytes() + pose + level.mission.encode())


def go_to_named_object(
    room_size: int = 6,
    num_objects: int = 3,
    held_out: bool = False,
    render_mode: str | None = None,
) -> gym.Env[FloatArray, np.int64]:
    """Makes `BabyAIGoToText-v0`; its episodes end after room_size * room_size steps.

    Args:
        room_size: the room's side with its walls, in cells, 5 to 8.
        num_objects: in the room, 1 to room_size.
        held_out: play the rooms of `is_held_out` instead of all others.
        render_mode: gymnasium's.

    Raises:
        ModuleNotFoundError: if MiniGrid is not installed.
        ValueError: if a number is out of range.
    """
    if not (5 <= room_size <= 8 and 1 <= num_objects <= room_size):
        raise ValueError(
            f"room_size={room_size} and num_objects={num_objects} are out of range; give a "
            f"room of 5 to 8 cells and 1 to room_size objects"
        )
    try:
        from minigrid.envs.babyai import GoToLocal
        from minigrid.envs.babyai.core import roomgrid_level
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "MiniGrid is not installed; run pip install 'rl-service[text]'"
        ) from error
    roomgrid_level.print = lambda *_: None  # it reports each room that it draws again
    return NamedObject(GoToLocal(room_size, num_objects, render_mode=render_mode), held_out)


class _Seen(NamedTuple):
    """An object in view: its numbers in `_TYPES` and `_COLORS`, and where it is."""

    kind: int
    color: int
    forward: int
    right: int
    """Cells to the right of the agent's line; negative to the left."""


def _objects(image: npt.NDArray[np.uint8]) -> list[_Seen]:
    """Objects of MiniGrid's view (column, row, [type, color, state]), the nearest rows first."""
    kinds = image[..., 0].astype(int) - _FIRST_TYPE
    found = [
        _Seen(kinds[x, y], image[x, y, 1], _VIEW - 1 - y, x - _VIEW // 2)
        for x, y in np.argwhere(np.isin(kinds, range(len(_TYPES))))
    ]
    return sorted(found, key=lambda seen: (seen.forward, seen.right))


def _numbers(obs: dict[str, Any]) -> FloatArray:
    cells = np.zeros((_VIEW, _VIEW, len(_NAMES)), np.float32)
    for seen in _objects(obs["image"]):
        cell = cells[_VIEW - 1 - seen.forward, seen.right + _VIEW // 2]
        cell[[seen.kind, len(_TYPES) + seen.color]] = 1.0
    named = [name in obs["mission"].split() for name in _NAMES]
    return np.concatenate([np.array(named, np.float32), cells.ravel()])


def _words(obs: dict[str, Any]) -> str:
    objects = [
        " ".join([_COLORS[seen.color], _TYPES[seen.kind], *_place(seen.forward, seen.right)])
        for seen in _objects(obs["image"])
    ]
    return f"{obs['mission']}. You see: {'; '.join(objects) or 'nothing'}"


def _place(forward: int, right: int) -> Iterator[str]:
    if forward:
        yield f"{forward} forward"
    if right:
        yield f"{abs(right)} {'right' if right > 0 else 'left'}"


gym.register("FrozenLakeMaps-v1", f"{__name__}:FrozenLakeMaps", max_episode_steps=100)
gym.register("BabyAIGoToText-v0", f"{__name__}:go_to_named_object")
