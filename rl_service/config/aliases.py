"""Names that are not ours but keep working: the GPT2PPO paper's models, environments of old."""

from __future__ import annotations

PAPER_MODELS = {"ppo_ex": "mlp", "ppo_gpt": "gpt2_critic"}
"""Our model for a name of the paper's; its preset is the paper's Table I."""

ENV_ALIASES = {
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
}


def resolve_env_id(env_id: str) -> tuple[str, str | None]:
    """Maps the id of an environment that gymnasium has dropped to its successor.

    Returns:
        The id to use, and a note for the user if it differs from the one given.
    """
    successor = ENV_ALIASES.get(env_id)
    if successor is None:
        return env_id, None
    return successor, f"{env_id} is no longer in gymnasium; using its successor {successor}"
