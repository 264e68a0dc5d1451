"""The model card: `policy.json` in words."""

from __future__ import annotations

from collections.abc import Mapping

from rl_service.policies.spec import BoxSpec, DiscreteSpec, PolicySpec


def model_card(spec: PolicySpec) -> str:
    """Markdown text of `card.md`."""
    return "\n".join(
        [
            f"# {spec.model.name} on {spec.env.id}",
            "",
            "A policy trained with rl-service. The observation goes through the filter (if any) to "
            f"{_actor_text(spec)}; the critic that trained it read the last "
            f"{spec.context_length} step(s) of the episode.",
            "",
            "## Use",
            "```python",
            "from rl_service.policies import load_bundle",
            "",
            'policy = load_bundle("this folder")',
            "env_action = policy.act(observation[None], deterministic=True).env_actions[0]",
            "```",
            "or `rl-service evaluate <this folder>`. Loading needs torch, not Ray.",
            "",
            "## Inputs and outputs",
            f"- observation: {_space_text(spec.observation_space)}",
            f"- action: {_space_text(spec.action_space)}",
            f"- observation filter: {'mean/std' if spec.observation_filter else 'none'}",
            f"- time limit: {spec.env.max_episode_steps or 'the environment’s own'} steps",
            "",
            *_table("Evaluation", spec.evaluation),
            *_table("Model", spec.model.model_dump(mode="json")),
            *_table("Provenance", spec.provenance),
        ]
    )


def _actor_text(spec: PolicySpec) -> str:
    steps = spec.model.acting_context_length
    text = "a small feed-forward actor"
    if spec.model.has_language_model:
        text = f"a language model that reads the last {steps} observation(s) as text"
    elif steps > 1:
        text += f" on the last {steps} observations"
    if steps > 1:
        text += (
            " (give the steps before as `history`, see `custom_models.history.RunningHistory`; "
            "without it, each observation counts as the first of an episode)"
        )
    if spec.base_model is not None:
        sha256 = spec.base_model.sha256[:12]
        text += f"; its base model {spec.base_model.name} (sha256 {sha256}…) is not in this folder"
    return text


def _space_text(space: BoxSpec | DiscreteSpec) -> str:
    if isinstance(space, DiscreteSpec):
        return f"one of {space.n} integers from {space.start}"
    bounds = set(zip(space.low, space.high, strict=True))
    within = f" within {_bounds_text(*bounds.pop())}" if len(bounds) == 1 else ""
    return f"{space.dtype} numbers of shape {space.shape}{within}"


def _bounds_text(low: float | None, high: float | None) -> str:
    return f"[{'-∞' if low is None else low}, {'∞' if high is None else high}]"


def _table(title: str, rows: Mapping[str, object]) -> list[str]:
    lines = [f"| {key} | {_cell(value)} |" for key, value in rows.items()]
    return [f"## {title}", "| | |", "|---|---|", *lines, ""] if rows else []


def _cell(value: object) -> str:
    """Text that cannot break out of a table cell."""
    return " ".join(str(value).replace("|", "\\|").split())
