"""What the results pages show is what is recorded beside them, as today's tables read it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks import catalog
from tests.benchmarks.gpu import report as gpu
from tests.benchmarks.record import RESULTS, Record, Tables
from tests.benchmarks.simulation import report as simulation
from tests.learning import critics, memory, memory_worth, text, toy_text, training

RECORDS: list[tuple[Record, dict[str, Tables]]] = [
    (Record(RESULTS, "speed", "make bench"), catalog.TABLES),
    (Record(RESULTS, "speed-gpu", "make bench-gpu"), gpu.TABLES),
    (
        Record(RESULTS, "scaling", "make bench-scaling", title="Scaling"),
        {"simulation": simulation.tables},
    ),
]


@pytest.mark.parametrize(("record", "tables"), RECORDS, ids=[record.name for record, _ in RECORDS])
def test_a_page_is_made_of_its_record(record: Record, tables: dict[str, Tables]) -> None:
    assert record.page_path.read_text(encoding="utf-8") == record.page(tables)


def test_the_table_of_the_gpt2_critic_is_made_of_its_record() -> None:
    text = training.read_between(critics.PAGE, critics.MARKS)
    assert text == critics.table(critics.read())


def test_the_tables_of_memory_are_made_of_their_record() -> None:
    text = training.read_between(memory.PAGE, memory.MARKS)
    assert text == memory.tables(memory.read())


def test_the_table_of_what_memory_is_worth_is_made_of_the_records() -> None:
    shown = training.read_between(memory_worth.PAGE, memory_worth.MARKS)
    assert shown == memory_worth.table()


def test_chance_is_the_share_of_divisions_that_differ_as_much() -> None:
    found = memory_worth.chance(np.array([0.0, 0.0]), np.array([1.0, 1.0]))
    assert found == pytest.approx(2 / 6, abs=0.01)  # two of six ways to divide four runs
    assert memory_worth.chance(np.array([0.0, 1.0]), np.array([0.0, 1.0])) == 1.0


def test_the_tables_of_text_are_made_of_their_record() -> None:
    assert training.read_between(text.PAGE, text.MARKS) == text.tables(text.read())


def test_the_table_of_toy_text_is_made_of_its_record() -> None:
    shown = training.read_between(toy_text.PAGE, toy_text.MARKS)
    assert shown == toy_text.table(toy_text.read())


def test_a_language_model_is_compared_by_two_standard_errors() -> None:
    def runs(*scores: float) -> dict[str, dict[str, float]]:
        return {str(seed): {"held_out": score} for seed, score in enumerate(scores)}

    results = {
        "task": {text.LORA: runs(0.8, 0.9), text.ZERO_SHOT: runs(0.6), text.RANDOM: runs(0.7, 0.8)},
        "other": {text.LORA: runs(0.8, 0.9), text.ZERO_SHOT: runs(0.5, 0.7)},
    }
    assert text.comparison(results, "task", text.ZERO_SHOT) == "LoRA minus zero-shot: not measured"
    found = text.comparison(results, "task", text.RANDOM)  # errors of 0.05 each
    assert (
        found == "LoRA minus random weights: 0.100 ± 0.071, **not** more than two standard errors"
    )
    found = text.comparison(results, "other", text.ZERO_SHOT)  # of 0.05 and 0.1
    assert found.endswith(": 0.250 ± 0.112, more than two standard errors")
