"""What the results pages show is what is recorded beside them, as today's tables read it."""

from __future__ import annotations

import pytest

from tests.benchmarks import catalog
from tests.benchmarks.gpu import report as gpu
from tests.benchmarks.record import RESULTS, Record, Tables
from tests.benchmarks.simulation import report as simulation
from tests.learning import critics, memory, training

RECORDS: list[tuple[Record, dict[str, Tables]]] = [
    (Record(RESULTS, "speed", "make bench"), catalog.TABLES),
    (Record(RESULTS, "speed-gpu", "make bench-gpu"), {"gpu": gpu.tables}),
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
