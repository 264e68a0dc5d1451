"""An environment of text, for a language model that scores the texts of the actions on offer.

rl-service train -m llm_policy -e docs.examples.text_env:Needs --set model.observation=text \
    --set model.action_scoring=tokens --set model.critic=hidden_state --set model.finetune=full \
    --set model.n_layer=1 --set model.n_embd=32 --set algorithm.actor_lr=0.003 \
    --set algorithm.train_batch_size=256 --set stop.iterations=20

A small model with random weights learns it in a minute.

Observations are texts, as `gymnasium.spaces.Text` says. Actions are texts, too: the environment
lists those that are admissible now, 2 to 20 of them, in `info["admissible_actions"]`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

REMEDIES = {
    "You are hungry.": "eat the bread",
    "You are thirsty.": "drink the water",
    "You are cold.": "light the fire",
    "You are tired.": "go to bed",
}


class Needs(gym.Env[str, str]):
    """Do what helps. Each remedy pays 1; anything else ends the episode.

    Args:
        num_needs: needs of an episode, one after the other; the best return.
    """

    def __init__(self, num_needs: int = 3, render_mode: str | None = None) -> None:
        self.num_needs = num_needs
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Text(100)
        self.action_space = gym.spaces.Text(100)
        self._met = 0
        self._need = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._met = 0
        return self._observe()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        helps = action == REMEDIES[self._need]
        self._met += helps
        is_over = not helps or self._met == self.num_needs
        text, info = self._observe()
        return text, float(helps), is_over, False, info

    def _observe(self) -> tuple[str, dict[str, Any]]:
        """The next need, and two to four actions in random order, one of which helps."""
        self._need = str(self.np_random.choice(list(REMEDIES)))
        remedy = REMEDIES[self._need]
        others = [action for action in REMEDIES.values() if action != remedy]
        num_others = int(self.np_random.integers(1, len(others) + 1))
        offered = [remedy, *self.np_random.permutation(others)[:num_others].tolist()]
        actions = self.np_random.permutation(offered).tolist()
        return self._need, {"admissible_actions": actions}
