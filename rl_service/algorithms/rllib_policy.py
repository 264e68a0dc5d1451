"""The side of a policy that RLlib asks: its model, its own sampler, and the weights that travel."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.models.catalog import ModelCatalog
from ray.rllib.models.modelv2 import ModelV2
from ray.rllib.models.torch.torch_action_dist import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchDistributionWrapper,
    TorchMultiCategorical,
)
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.torch_policy_v2 import TorchPolicyV2
from torch import Tensor

from custom_models.nets import ActorCritic
from custom_models.spaces import ActionSpec
from rl_service.rollout.fragments import ACTOR_INPUTS, rows_from_view


class RLlibPolicy(TorchPolicyV2):  # type: ignore[misc]
    """Base of `ActorCriticPolicy`, which sets the attributes."""

    action_spec: ActionSpec
    net: ActorCritic
    is_learner: bool
    num_context_steps: int

    def _init_model_and_dist_class(self) -> tuple[ModelV2, type[TorchDistributionWrapper]]:
        """The custom model of the settings; rollout workers have no critic, and some no actor."""
        model_config = dict(self.config["model"])
        model_config["custom_model_config"] = {
            **model_config["custom_model_config"],
            "with_critic": self.is_learner,
            "asks": self.config["has_inference_actor"] and not self.is_learner,
        }
        model = ModelCatalog.get_model_v2(
            self.observation_space,
            self.action_space,
            self.action_spec.num_dist_inputs,
            model_config,
            "torch",
        )
        return model, self._rllib_distribution()

    def _rllib_distribution(self) -> Any:
        """What RLlib's own sampler draws from."""
        if self.action_spec.kind == "multi_discrete":
            return partial(TorchMultiCategorical, input_lens=list(self.action_spec.sizes))
        return TorchCategorical if self.action_spec.kind == "discrete" else TorchDiagGaussian

    def optimizer(self) -> list[torch.optim.Optimizer]:
        """None of RLlib's: actor and critic have their own, see `build_optimizers`."""
        return []

    def extra_action_out(
        self, input_dict: Any, state_batches: Any, model: Any, action_dist: Any
    ) -> dict[str, Tensor]:
        """What RLlib's own sampler keeps in addition when it acts."""
        if self.net.actor.num_inputs is None:
            return {}
        return {ACTOR_INPUTS: model.last_inputs}

    def postprocess_trajectory(
        self,
        sample_batch: SampleBatch,
        other_agent_batches: dict[Any, Any] | None = None,
        episode: Any = None,
    ) -> SampleBatch:
        """RLlib's own sampler calls this once per piece: lays it out as rows of a fragment."""
        return rows_from_view(sample_batch, self.num_context_steps)

    def get_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """The actor's weights that learning changes, which are all that rollout workers need."""
        return {name: p.cpu().numpy() for name, p in self.net.actor.trainable_state().items()}

    def set_weights(self, weights: dict[str, npt.NDArray[np.float32]]) -> None:
        self.net.actor.load_arrays(weights)

    def get_state(self) -> dict[str, Any]:
        """Weights for a worker that (re)joins; the learner's state is `get_learner_state`."""
        return {"weights": self.get_weights(), "global_timestep": self.global_timestep}

    def set_state(self, state: dict[str, Any]) -> None:
        self.set_weights(state["weights"])
        self.global_timestep = state["global_timestep"]
