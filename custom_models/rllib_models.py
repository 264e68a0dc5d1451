"""ModelV2 adapter: RLlib's view of the nets. No maths here.

What a net needs beyond the current observation is asked for as *view requirements*, RLlib's
trajectory view: K-1 earlier steps of the same episode. To act, an actor asks at each step; to
learn, a critic and an actor that reads chunks ask once per fragment. RLlib's sampler and
`rl_service.rollout.worker` both honour them.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.models.torch.torch_modelv2 import TorchModelV2
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement
from torch import Tensor, nn

from custom_models.configs import MODELS
from custom_models.history import History
from custom_models.nets import ActorCritic, build_actor_critic
from custom_models.spaces import ActionSpec, observation_size

CONTEXT_OBS = "context_obs"
CONTEXT_ACTIONS = "context_actions"
CONTEXT_REWARDS = "context_rewards"
ACTING_OBS = "acting_obs"
ACTING_ACTIONS = "acting_actions"

_ONCE_PER_FRAGMENT = 1 << 30
"""`batch_repeat_value` larger than any fragment: the view is built for its first step alone."""


class ActorCriticModelV2(TorchModelV2, nn.Module):  # type: ignore[misc]
    """Wraps an `ActorCritic`: `forward` is the actor; the critic is asked once per fragment.

    `custom_model_config` holds `net`, the settings of the net as a plain dict; `with_critic`:
    rollout workers act only, so they carry no critic; and `asks`: whether even the actor's weights
    are elsewhere.
    """

    def __init__(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_outputs: int,
        model_config: dict[str, Any],
        name: str,
        *,
        net: dict[str, Any],
        with_critic: bool = True,
        asks: bool = False,
    ) -> None:
        TorchModelV2.__init__(self, obs_space, action_space, num_outputs, model_config, name)
        nn.Module.__init__(self)
        config = MODELS.find(net["name"]).model_validate(net)
        self.net: ActorCritic = build_actor_critic(
            config,
            observation_size(obs_space),
            ActionSpec.from_space(action_space),
            with_critic=with_critic,
            asks=asks,
        )
        self._require_context(config.num_shipped_steps)
        self._require_history(config.acting_context_length - 1)
        self.last_inputs: Any = None
        """What the last `forward` computed its distribution from."""

    view_requirements: dict[str, ViewRequirement]

    def _require_context(self, num_steps: int) -> None:
        if num_steps == 0:
            return
        for column, source, space in (
            (CONTEXT_OBS, SampleBatch.OBS, self.obs_space),
            (CONTEXT_ACTIONS, SampleBatch.ACTIONS, self.action_space),
            (CONTEXT_REWARDS, SampleBatch.REWARDS, None),
        ):
            self.view_requirements[column] = ViewRequirement(
                source,
                space=space,
                shift=f"-{num_steps}:-1",
                used_for_compute_actions=False,
                batch_repeat_value=_ONCE_PER_FRAGMENT,
            )

    def _require_history(self, num_steps: int) -> None:
        if num_steps == 0:
            return
        shift = f"-{num_steps}:-1"
        self.view_requirements[ACTING_OBS] = ViewRequirement(
            SampleBatch.OBS, space=self.obs_space, shift=shift
        )
        self.view_requirements[ACTING_ACTIONS] = ViewRequirement(
            SampleBatch.ACTIONS, space=self.action_space, shift=shift
        )

    def forward(
        self, input_dict: dict[str, Any], state: list[Tensor], seq_lens: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Action distribution inputs (B, num_outputs), from the observations acted on."""
        self.last_inputs = self.net.actor.encode(self._history(input_dict))
        return self.net(self.last_inputs), state

    def _history(self, views: dict[str, Any]) -> History:
        obs = views[SampleBatch.OBS].float().cpu().numpy()[:, None]  # (B, 1, O)
        if ACTING_OBS not in views:
            return History.first_steps(obs[:, 0], 1, self.net.action_spec)
        earlier = views[ACTING_OBS].float().cpu().numpy().reshape(len(obs), -1, obs.shape[2])
        num_earlier, row_shape = earlier.shape[1], self.net.action_spec.row_shape
        # A view of one step comes without a dimension of time.
        actions = views[ACTING_ACTIONS].cpu().numpy().reshape(len(obs), num_earlier, *row_shape)
        num_steps = views[SampleBatch.T].cpu().numpy() + 1  # RLlib counts what has been done
        return History(
            np.concatenate([earlier, obs], axis=1),
            actions,
            num_steps.clip(0, num_earlier),
        )

    def value_function(self) -> Tensor:
        """Not per step: RLlib would ask at every env step for what one pass per fragment gives."""
        raise NotImplementedError("values come from rl_service.algorithms.batch, once per fragment")


def acting_context_length(view_requirements: dict[str, ViewRequirement]) -> int:
    """Observations that a model's view requirements ask for to act, the current one included."""
    view = view_requirements.get(ACTING_OBS)
    return 1 if view is None else 1 + len(view.shift_arr)


def num_context_steps(view_requirements: dict[str, ViewRequirement]) -> int:
    """Earlier steps that a model's view requirements ask for, 0 if none."""
    view = view_requirements.get(CONTEXT_OBS)
    return 0 if view is None else len(view.shift_arr)
