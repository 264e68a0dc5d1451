"""Names of the models in RLlib's `ModelCatalog`."""

from __future__ import annotations

from ray.rllib.models import ModelCatalog

from custom_models.rllib_models import ActorCriticModelV2

MODELS = ("mlp", "gpt2_critic", "llm_policy")
"""Names that `model.name` accepts; each is registered with RLlib under the same name."""


def register_models() -> None:
    """Makes every model known to RLlib in this process; may be called again."""
    for name in MODELS:
        ModelCatalog.register_custom_model(name, ActorCriticModelV2)
