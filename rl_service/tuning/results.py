"""The table of a comparison: one row a group, returns as mean ± deviation over its runs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from rl_service.tuning.groups import Group

RESULTS_CSV, RESULTS_MD = "results.csv", "results.md"
HEADINGS = (
    *("group", "runs", "seeds", "env steps"),
    *("final return", "best return", "final evaluation", "best evaluation"),
)


class Spread(NamedTuple):
    """A figure over several runs."""

    mean: float
    std: float | None
    """Sample standard deviation; None for a single run."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        deviation = "" if self.std is None else f" ± {self.std:,.1f}"
        return f"{self.mean:,.1f}{deviation}"


@dataclass(frozen=True)
class GroupResult:
    """What the runs of a group reached; None where one of them has no such figure."""

    group: str
    runs: list[Path]
    seeds: list[int]
    env_steps_min: int
    env_steps_max: int
    returns: dict[str, Spread | None]
    """`final_return` and `best_return` in training, `final_evaluation` and `best_evaluation`."""

    @classmethod
    def of(cls, group: Group) -> GroupResult:
        steps = [run.env_steps for run in group.runs]
        return cls(
            group=group.label,
            runs=[run.run.path for run in group.runs],
            seeds=[run.run.settings.seed for run in group.runs],
            env_steps_min=min(steps),
            env_steps_max=max(steps),
            returns={
                **_final_and_best(group, "episode_return_mean", "return"),
                **_final_and_best(group, "evaluation/episode_return_mean", "evaluation"),
            },
        )

    def as_row(self) -> dict[str, Any]:
        """Plain values by column of the CSV file."""
        row: dict[str, Any] = {
            "group": self.group,
            "runs": len(self.runs),
            "seeds": " ".join(map(str, self.seeds)),
            "env_steps_min": self.env_steps_min,
            "env_steps_max": self.env_steps_max,
        }
        for name, spread in self.returns.items():
            row[f"{name}_mean"], row[f"{name}_std"] = spread or (None, None)
        return row

    def cells(self) -> list[str]:
        """The row as it is read, under HEADINGS."""
        least, most = self.env_steps_min, self.env_steps_max
        return [
            self.group,
            str(len(self.runs)),
            ", ".join(map(str, self.seeds)),
            f"{most:,}" if least == most else f"{least:,}–{most:,}",
            *("–" if spread is None else str(spread) for spread in self.returns.values()),
        ]


def write_results(folder: Path, results: Sequence[GroupResult]) -> None:
    """Writes the table as CSV with all digits, and as Markdown to be read."""
    rows = [result.as_row() for result in results]
    with (folder / RESULTS_CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / RESULTS_MD).write_text(_markdown(results), encoding="utf-8")


def _final_and_best(group: Group, metric: str, name: str) -> dict[str, Spread | None]:
    curves = group.curves(metric)
    if curves is None:
        return {f"final_{name}": None, f"best_{name}": None}
    return {
        f"final_{name}": Spread.of([float(curve.values[-1]) for curve in curves]),
        f"best_{name}": Spread.of([float(curve.values.max()) for curve in curves]),
    }


def _markdown(results: Sequence[GroupResult]) -> str:
    lines = [
        _line(HEADINGS),
        _line(["---"] * 3 + ["---:"] * (len(HEADINGS) - 3)),
        *(_line([cell.replace("|", r"\|") for cell in result.cells()]) for result in results),
        "",
        *(f"- {r.group}: {', '.join(f'`{run.name}`' for run in r.runs)}" for r in results),
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
