"""Settings of the runs that are measured, from plain values."""

from __future__ import annotations

from typing import Any

from rl_service.config.settings import Settings

Variant = dict[str, Any]
"""Groups of settings as plain values, as a file would hold them."""


def benchmark_settings(variant: Variant) -> Settings:
    """Settings with the variant's values, PPO by default; rollout workers ask Ray for no CPU.

    The machine's cores bound nothing then: variants take turns, and the idle ones take no time.
    """
    resources = {**variant.get("resources", {}), "num_cpus_per_env_runner": 0.0}
    algorithm = {"name": "ppo", **variant.get("algorithm", {})}
    return Settings.model_validate({**variant, "algorithm": algorithm, "resources": resources})
