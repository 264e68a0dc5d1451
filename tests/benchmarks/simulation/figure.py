"""The figure: what the model predicts, what was measured, and where the learner is full."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.benchmarks.record import Raw


def draw(raw: Raw, path: Path) -> None:
    """Writes the figure as PNG: throughput on the left, the share of waiting on the right."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = dict(zip(("env_steps_per_s", "wait_share"), figure.subplots(1, 2), strict=True))
    for key, axes in panels.items():
        for number, curve in enumerate(raw["curves"]):
            _draw_curve(axes, curve, key, f"C{number}")
        _draw_checks(axes, raw, key)
        axes.set(xscale="log", xlabel="rollout workers")
        axes.grid(alpha=0.3)
    panels["env_steps_per_s"].set(yscale="log", ylabel="env steps/s")
    panels["env_steps_per_s"].legend(fontsize=8)
    panels["wait_share"].set(ylim=(-0.02, 1.0), ylabel="share of an iteration without learning")
    figure.suptitle(
        f"Simulated training on nodes of {raw['cluster']['cores_per_node']} cores; dotted: the "
        f"learner's ceiling; vertical lines: where it is full",
        fontsize=10,
    )
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, format="png", dpi=120)
    temporary.replace(path)


def _label(curve: Raw) -> str:
    full = curve["saturates_at"]
    return f"{curve['name']} ({f'full at {full}' if full else 'never full'})"


def _draw_curve(axes: Axes, curve: Raw, key: str, color: str) -> None:
    points = curve["points"]
    workers = [point["workers"] for point in points]
    axes.plot(workers, [point[key] for point in points], color=color, label=_label(curve))
    if key == "env_steps_per_s":
        ceilings = [point["ceiling"] for point in points]
        axes.plot(workers, ceilings, color=color, linestyle=":", linewidth=1)
    if curve["saturates_at"] is not None:
        axes.axvline(curve["saturates_at"], color=color, linewidth=0.8, alpha=0.6)


def _draw_checks(axes: Axes, raw: Raw, key: str) -> None:
    """Real trainings as dots, and crosses where the model puts them."""
    workers = [check["workers"] for check in raw["checks"]]
    for what, marker in (("measured", "o"), ("predicted", "x")):
        values = [check[what][key] for check in raw["checks"]]
        label = f"{what}, on {raw['cores']} cores"
        axes.scatter(workers, values, color="black", s=24, marker=marker, zorder=3, label=label)
