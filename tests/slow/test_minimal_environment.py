"""A robot needs no Ray: what a bundle and the clients take, in environments that have no more."""

from __future__ import annotations

import os
import subprocess
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement  # of pytest

ROOT = Path(__file__).parents[2]

ACT = """
import numpy as np
from rl_service.policies import load_bundle
from rl_service.policies.locate import find_policy

policy = load_bundle(find_policy("zoo:lunarlander"))
actions = policy.act(np.zeros((2, 8), np.float32), deterministic=True)
assert actions.env_actions.shape == (2,), actions
"""

ASK = """
import httpx
from rl_service.serving.client import PolicyClient

reply = {"action": 3, "log_prob": -1.0, "policy": "p", "version": 1, "request_id": "r"}
transport = httpx.MockTransport(lambda request: httpx.Response(200, json=reply))
with PolicyClient("http://test", transport=transport) as client:
    assert client.act("p", [0.0] * 8).action == 3
"""


@pytest.mark.parametrize(
    ("names", "script"),
    [(("torch", "numpy", "pydantic", "safetensors"), ACT), (("httpx", "numpy"), ASK)],
    ids=["a bundle acts", "the clients ask"],
)
def test_it_works_with_these_distributions_alone(
    names: tuple[str, ...], script: str, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    [site] = (tmp_path / "env").glob("lib/python*/site-packages")
    for name in with_requirements(names):
        link(name, site)
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", script],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def with_requirements(names: tuple[str, ...]) -> set[str]:
    """What pip would install for these names, extras aside."""
    found: set[str] = set()
    missing = list(names)
    while missing:
        name = missing.pop()
        if name not in found:
            found.add(name)
            wanted = map(Requirement, distribution(name).requires or ())
            missing += [r.name for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})]
    return found


def link(name: str, site: Path) -> None:
    """Puts the files of an installed distribution into another environment, without copies."""
    dist = distribution(name)
    for top in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
        (site / top).symlink_to(Path(str(dist.locate_file(top))))
