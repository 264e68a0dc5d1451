"""A service, and bundles for it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WriteTestBundle, write_untrained_bundle
from tests.support.services import Start


@pytest.fixture(scope="module")
def write_bundle_once() -> WriteTestBundle:
    """`write_test_bundle` for the fixtures of a module."""
    return write_untrained_bundle


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    folder = Path(tempfile.mkdtemp(prefix="rlt"))  # short: Ray's sockets live below it
    starter = Start(folder)
    yield starter
    starter.stop()
    shutil.rmtree(folder, ignore_errors=True)
