"""The results page: one table of all experiments, their single seeds, and the curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.learning import queue, record, training
from tests.learning.queue import Figure, Queue, Row
from tests.learning.record import RUNS, Record

FOLDER = training.ROOT / "docs" / "results"
PAGE = FOLDER / "README.md"
MARKS = ("<!-- tables of tests.learning.results -->\n", "<!-- end of the tables -->\n")
NOT_MEASURED = "not measured"
COLORS = ("tab:gray", "tab:blue", "tab:orange", "tab:green")
X_LABELS = {record.STEPS: "env steps", record.EPISODES: "training episodes"}
Floats = npt.NDArray[np.float64]
Records = dict[str, dict[int, Record]]
"""By row and seed."""


def read(rows: Queue, folder: Path = RUNS) -> Records:
    """What is on record."""
    return {name: record.read_all(row, folder) for name, row in rows.rows.items()}


def draw(rows: Queue, records: Records) -> None:
    """Writes the page and the figures."""
    for figure in _drawn(rows, records):
        draw_figure(figure, records, FOLDER / f"{figure.name}.png")
    training.write_between(PAGE, MARKS, tables(rows, records))


def tables(rows: Queue, records: Records) -> str:
    """The table of all experiments, and the one of their seeds."""
    lines = [
        "| experiment | report | best public | ours | goal | env steps | minutes | command |",
        "|---|---|---|---|---|---:|---:|---|",
    ]
    for section in rows.sections:
        lines.append(f"| **{section.title}** |  |  |  |  |  |  |  |")
        lines += [_line(row, rows, records) for row in section.rows]
    lines += [
        "",
        "## Single seeds",
        "",
        "| experiment | returns, in the order of the seeds | seeds | on |",
        "|---|---|---|---|",
        *(_seeds(row, records) for row in rows.rows.values() if returns(row, records)),
    ]
    drawn = _drawn(rows, records)
    lines += ["", "## Curves"] if drawn else []
    lines += [part for f in drawn for part in ("", f"![{f.title}]({f.name}.png)")]
    notes = [f"- {row.title}: {row.note}" for row in rows.rows.values() if row.note]
    return "\n".join([*lines, "", "## Notes on single experiments", "", *notes]) + "\n"


def returns(row: Row, records: Records) -> dict[int, float]:
    """Mean return of the final episodes of each run, by its seed."""
    found = {seed: float(np.mean(one["returns"])) for seed, one in records[row.name].items()}
    return found or row.taken_over


def _line(row: Row, rows: Queue, records: Records) -> str:
    runs = list(records[row.name].values())
    scores = list(returns(row, records).values())
    most = row.settings(row.seeds[0]).total_env_steps
    steps = max((one["env_steps"] for one in runs), default=most)
    minutes = f"{np.mean([one['minutes'] for one in runs]):.1f}" if runs else "–"
    cells = [
        row.title,
        _published(row.report),
        _published(row.public),
        _mean(scores, len(row.seeds)),
        _goal(row, rows, records),
        f"{steps:,}",
        minutes,
        f"`{row.command()}`",
    ]
    return "| " + " | ".join(cells) + " |"


def _published(reported: queue.Reported | None) -> str:
    if reported is None:
        return "–"
    steps = f", {reported.env_steps:,} env steps" if reported.env_steps else ""
    return f"{reported.value} ({reported.by}{steps})"


def _mean(scores: list[float], wanted: int) -> str:
    """Mean and deviation over the seeds; how many, if some are missing."""
    if not scores:
        return NOT_MEASURED
    spread = f" ± {np.std(scores, ddof=1):.1f}" if len(scores) > 1 else ""
    count = f"{len(scores)} of {wanted} seeds" if len(scores) < wanted else f"{wanted} seeds"
    return f"**{np.mean(scores):.1f}**{spread} ({count.replace('1 seeds', '1 seed')})"


def _goal(row: Row, rows: Queue, records: Records) -> str:
    """What is to be reached, and by how much it was missed, if it was."""
    scores = list(returns(row, records).values())
    if row.goal_episode is not None:
        goal = f"{row.goal_return:g} in training by episode {row.goal_episode}"
        found = [first_reached(row, one) for one in records[row.name].values()]
        return f"{goal}: {', '.join(map(str, found))}" if found else goal
    if row.goal_return is not None:
        goal = f"{row.goal_return:g}"
        if not scores:
            return goal
        gap = row.goal_return - float(np.mean(scores))
        return f"{goal}: " + ("reached" if gap <= 0 else f"missed by {gap:.1f}")
    if row.level_with is not None:
        other = rows.rows[row.level_with]
        theirs = list(returns(other, records).values())
        goal = f"level with {other.title}"
        if min(len(scores), len(theirs)) < 2:
            return goal
        error = np.sqrt(sum(np.var(s, ddof=1) / len(s) for s in (scores, theirs)))
        return f"{goal}: {np.mean(scores) - np.mean(theirs):+.1f} ± {error:.1f} (standard error)"
    return "–"


def first_reached(row: Row, one: Record) -> int | str:
    """Training episode by which the mean of `episodes_per_point` of them first reached the goal."""
    points = one["per_episodes"]
    pairs = zip(points[record.EPISODES], points[record.PER_EPISODES], strict=True)
    return next((end for end, mean in pairs if mean >= (row.goal_return or 0.0)), "never")


def _seeds(row: Row, records: Records) -> str:
    scores = returns(row, records)
    machines = sorted({one["machine"] for one in records[row.name].values()})
    cells = [
        row.title,
        " ".join(f"{score:.1f}" for score in scores.values()),
        " ".join(map(str, scores)),
        "; ".join(machines) or "taken over",
    ]
    return "| " + " | ".join(cells) + " |"


def _drawn(rows: Queue, records: Records) -> list[Figure]:
    """Figures that have a run for each of their lines."""
    figures = [figure for section in rows.sections for figure in section.figures]
    return [f for f in figures if all(records[name] for name in f.lines.values())]


def draw_figure(figure: Figure, records: Records, path: Path) -> None:
    """Draws a panel a column: the mean of each row's runs, and the band of their extremes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(5.5 * min(2, len(figure.panels)), 3.4 * -(-len(figure.panels) // 2)))
    canvas.set_layout_engine("constrained")
    FigureCanvasAgg(canvas)
    shape = (-(-len(figure.panels) // 2), min(2, len(figure.panels)))
    panels: Any = canvas.subplots(*shape, squeeze=False).ravel()
    for axes, (column, label) in zip(panels, figure.panels.items(), strict=True):
        for (name, row), color in zip(figure.lines.items(), COLORS, strict=False):
            x, curves = band(list(records[row].values()), figure.over, column)
            axes.plot(x, curves.mean(axis=0), color=color, label=name)
            axes.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.2)
        axes.set_xlabel(X_LABELS[figure.over])
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[0].legend()
    canvas.suptitle(figure.title, fontsize=10)
    canvas.savefig(path, dpi=110)


def band(runs: list[Record], over: str, column: str) -> tuple[Floats, Floats]:
    """Curves of several runs on the points of the shortest one.

    Returns:
        Points (T,), and the runs' values there (N, T).
    """
    lines = [_line_of(one, over, column) for one in runs]
    points = min((x for x, _ in lines), key=lambda x: float(x[-1]))
    return points, np.stack([np.interp(points, x, y) for x, y in lines])


def _line_of(one: Record, over: str, column: str) -> tuple[Floats, Floats]:
    """Points and values of a run, without those from before its first episode ended."""
    columns = one["per_episodes"] if column == record.PER_EPISODES else one["curve"]
    x, y = (np.array(columns[name], np.float64) for name in (over, column))  # (T,)
    known = np.isfinite(y)
    return x[known], y[known]
