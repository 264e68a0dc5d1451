"""The model card: `policy.json` in words."""

from __future__ import annotations

from collections.abc import Mapping

from rl_service.policies.simple_spaces import BoxSpec
from rl_service.policies.spec import PolicySpec

_USE = {
    True: ["env_action = policy.act(observation[None], deterministic=True).env_actions[0]"],
    False: [
        "row, mask = policy.reader.read(observation)  # and info['action_mask'], if there is one",
        "mask = None if mask is None else mask[None]",
        "env_action = policy.act(row[None], deterministic=True, mask=mask).env_actions[0]",
    ],
}
"""Lines of code, by whether an observation is an array of numbers."""


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
            *_USE[isinstance(spec.observation_space, BoxSpec)],
            "```",
            "or `rl-service evaluate <this folder>`. Loading needs torch, not Ray.",
            "",
            "## Inputs and outputs",
            f"- observation: {spec.observation_space.words}",
            f"- action: {spec.action_space.words}",
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


def _table(title: str, rows: Mapping[str, object]) -> list[str]:
    lines = [f"| {key} | {_cell(value)} |" for key, value in rows.items()]
    return [f"## {title}", "| | |", "|---|---|", *lines, ""] if rows else []


def _cell(value: object) -> str:
    """Text that cannot break out of a table cell."""
    return " ".join(str(value).replace("|", "\\|").split())
