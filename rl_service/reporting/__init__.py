"""Finished or running trainings beside each other: figures over env steps and a table."""

from rl_service.reporting.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
