"""Plays episodes in an environment on this machine, with a policy behind HTTP.

make serve
python docs/examples/play_over_http.py http://127.0.0.1:8000 lunarlander
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium as gym

from rl_service.serving.client import PolicyClient, Session


def play(url: str, policy: str, num_episodes: int = 3, seed: int = 123) -> list[float]:
    """Returns of episodes from seed, seed + 1, …: the same as `rl-service evaluate` shows."""
    with PolicyClient(url, token=os.environ.get("TOKEN")) as client:
        served = {each["policy"]: each for each in client.policies()}[policy]
        env = gym.make(served["env"], max_episode_steps=served["max_episode_steps"])
        returns = []
        for episode in range(num_episodes):
            with client.session(policy) as session:
                returns.append(_episode(session, env, seed + episode))
        return returns


def _episode(session: Session, env: Any, seed: int) -> float:
    obs, info = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        action = session.act(obs, action_mask=info.get("action_mask")).action
        obs, reward, terminated, truncated, info = env.step(action)
        total += float(reward)
        ended = terminated or truncated
    return total


if __name__ == "__main__":
    for episode_return in play(sys.argv[1], sys.argv[2]):
        print(f"{episode_return:.2f}")  # noqa: T201
