"""A session's history as bytes: the last K-1 observations and actions, and nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from custom_models.history import History
from custom_models.spaces import ActionSpec, FloatArray
from rl_service.policies.runner import PolicyRunner
from rl_service.serving.errors import RequestError


class Memory:
    """Histories of one policy, to and from bytes.

    Args:
        policy: whose observations and actions they hold.
        num_earlier: K-1, steps that are kept and read; a longer memory may be read, too.
    """

    def __init__(self, policy: PolicyRunner, num_earlier: int) -> None:
        self.num_earlier = num_earlier
        self._obs_size = int(np.prod(policy.observation_shape))
        self._action_spec = policy.action_spec
        action_size = _action_size(policy.action_spec)
        self._step_bytes = 4 * (self._obs_size + action_size)

    def history(self, memory: bytes, obs: FloatArray) -> History:
        """What a policy reads at an observation (O,) after the remembered steps."""
        if self.num_earlier == 0:
            return History.first_steps(obs[None], 1, self._action_spec)
        steps = np.frombuffer(memory, np.float32).reshape(-1, self._step_bytes // 4)
        return self.of_steps(steps[:, : self._obs_size], steps[:, self._obs_size :], obs)

    def of_steps(
        self, earlier_obs: FloatArray, actions: npt.NDArray[np.float32], obs: FloatArray
    ) -> History:
        """The same of the last of some earlier steps (N, O) and (N, A)."""
        first = max(0, len(earlier_obs) - self.num_earlier)
        earlier_obs, actions = earlier_obs[first:], actions[first:]
        num_steps = len(earlier_obs)
        history = History.first_steps(obs[None], self.num_earlier + 1, self._action_spec)
        if num_steps:
            history.obs[0, self.num_earlier - num_steps : -1] = earlier_obs
            kept = history.actions[0, self.num_earlier - num_steps :]
            kept[...] = actions.reshape(kept.shape)
        history.num_steps[0] = num_steps
        return history

    def after(self, memory: bytes, obs: FloatArray, action: npt.NDArray[np.float32]) -> bytes:
        """The memory once an action (A,) was taken at an observation (O,)."""
        if self.num_earlier == 0:
            return b""
        longer = memory + obs.astype(np.float32).tobytes() + action.astype(np.float32).tobytes()
        return longer[-self.num_earlier * self._step_bytes :]

    def read_actions(self, actions: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Checked actions (N, A) that a client says it has taken, in the policy's units.

        Raises:
            RequestError: 422 if one is no action of a discrete policy.
        """
        spec = self._action_spec
        if spec.kind == "discrete":
            known = (actions >= 0) & (actions < spec.size) & (actions == np.floor(actions))
            if not known.all():
                raise RequestError(
                    422,
                    "unknown_action",
                    f"history.actions holds no such action; expected integers from 0 to "
                    f"{spec.size - 1}",
                )
        return actions.reshape(len(actions), _action_size(spec))


def _action_size(spec: ActionSpec) -> int:
    return 1 if spec.kind == "discrete" else spec.size
