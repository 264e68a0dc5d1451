"""One metric of all groups over env steps, as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, which would look for a screen
from matplotlib.lines import Line2D

from rl_service.files import as_folder_name
from rl_service.metrics import METRICS
from rl_service.reporting.curves import Band

_DPI = 120
_LEGEND_WIDTH = 90  # characters
_COLOURS = 10  # of Matplotlib's cycle; then the same with another dash
_DASHES = ("-", "--", ":", "-.")


def figure_name(metric: str) -> str:
    """File of a metric's figure."""
    return f"{as_folder_name(metric)}.png"


def draw(path: Path, metric: str, bands: Mapping[str, Band]) -> None:
    """Draws a line and a band for each group.

    Args:
        path: the PNG file.
        metric: a key of `rl_service.metrics.METRICS`.
        bands: by label.
    """
    figure = Figure(figsize=(7, 4 + 0.2 * len(bands)), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    lines = [_draw_band(axes, i, band) for i, band in enumerate(bands.values())]
    unit = METRICS[metric].unit
    axes.set_title(METRICS[metric].meaning, fontsize=10)
    axes.set_xlabel("env steps")
    axes.set_ylabel(metric if unit == "1" else f"{metric} ({unit})")
    axes.grid(alpha=0.3)
    # Given one by one, or Matplotlib would leave out labels that begin with an underscore.
    figure.legend(
        lines,
        [_shown(label) for label in bands],
        loc="outside lower center",
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path)


def _draw_band(axes: Axes, index: int, band: Band) -> Line2D:
    colour, dashes = f"C{index % _COLOURS}", _DASHES[index // _COLOURS % len(_DASHES)]
    marker = "o" if len(band.env_steps) == 1 else None  # a line of one point is not seen
    axes.fill_between(band.env_steps, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
    [line] = axes.plot(band.env_steps, band.mean, color=colour, linestyle=dashes, marker=marker)
    return line


def _shown(label: str) -> str:
    return textwrap.fill(label.replace("$", r"\$"), _LEGEND_WIDTH)  # `$` would begin a formula
