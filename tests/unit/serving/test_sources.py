"""A bundle folder that is replaced while it is served."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from rl_service.common.errors import RegistryError
from rl_service.policies import load_bundle
from rl_service.policies.bundle_files import bundle_sha256
from rl_service.serving.inputs import Limits
from rl_service.serving.refusals import RequestError
from rl_service.serving.service import Service
from rl_service.serving.shared import ServingMetrics
from rl_service.serving.sources import FolderSource, find_sources
from tests.conftest import WriteTestBundle
from tests.support.serving import break_parity, build_local

OBS = np.full((1, 4), 0.1, np.float32)


@pytest.fixture
def folder(
    tmp_path: Path, write_test_bundle: WriteTestBundle, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """What is served; the other bundles are at `1`, `2` and `3`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # the cache lies below it
    for number in (1, 2, 3):
        write_test_bundle(tmp_path / str(number), seed=number)
    shutil.copytree(tmp_path / "1", tmp_path / "served")
    return tmp_path / "served"


def hold(folder: Path, number: int) -> None:
    """Puts another bundle there, as a new folder of the same name."""
    new = folder.with_name("new")
    shutil.copytree(folder.with_name(str(number)), new)
    shutil.rmtree(folder)
    new.rename(folder)


def logits(folder: Path) -> list[float]:
    actions = load_bundle(folder).act(OBS, deterministic=True, history=None)
    return list(actions.dist_inputs[0].tolist())


async def answer(service: Service) -> tuple[int, list[float]]:
    chosen = await service.policies["served"].chosen()
    answered, actions = await service.policies["served"].act(
        chosen, OBS, deterministic=True, recall=lambda _: None
    )
    return answered.version, actions.dist_inputs[0].tolist()


def test_the_version_is_that_of_the_content(folder: Path) -> None:
    source = FolderSource("served", folder)
    first = source.wanted()
    assert first == 1 + int(bundle_sha256(folder)[:7], 16)
    assert FolderSource("other", folder.with_name("1")).wanted() == first
    os.utime(folder / "policy.json", (0, 0))
    assert source.wanted() == first
    hold(folder, 2)
    assert source.wanted() != first
    hold(folder, 1)
    assert source.wanted() == first
    assert source.knows(first)
    assert not source.knows(first + 1)


def test_a_replaced_bundle_is_served_as_another_version(folder: Path) -> None:
    async def play() -> None:
        _, service, _ = await build_local(FolderSource("served", folder))
        first, outputs = await answer(service)
        assert outputs == logits(folder.with_name("1"))
        hold(folder, 2)
        assert await answer(service) == (first, outputs)  # until it is looked at, and checked
        await service.watch_once()
        second, outputs = await answer(service)
        assert second != first
        assert outputs == logits(folder.with_name("2"))
        # Who asks for the old one gets the old one, also after it was unloaded.
        service.loader._loaded.clear()
        old = await service.policies["served"].pinned(first)
        _, actions = await service.policies["served"].act(
            old, OBS, deterministic=True, recall=lambda _: None, pinned=True
        )
        assert actions.dist_inputs[0].tolist() == logits(folder.with_name("1"))
        with pytest.raises(RequestError) as refused:
            await service.policies["served"].pinned(first + 1)
        assert refused.value.code == "unknown_version"

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["parity", "truncated", "missing"])
def test_a_damaged_bundle_never_takes_traffic(folder: Path, kind: str) -> None:
    async def play() -> None:
        source = FolderSource("served", folder)
        _, service, shared = await build_local(source)
        first = await answer(service)
        hold(folder, 2)
        weights = folder / "policy.safetensors"
        if kind == "parity":
            break_parity(folder)
        elif kind == "truncated":
            weights.write_bytes(weights.read_bytes()[:-20])
        else:
            weights.unlink()
        for _ in range(2):
            await service.watch_once()
            assert await answer(service) == first
        if kind != "missing":
            assert shared.state.known_versions("served").rejected == (source.wanted(),)
        # A replica that starts now serves what the others serve.
        second = Service([FolderSource("served", folder)], Limits(), shared, ServingMetrics())
        await second.start()
        assert await answer(second) == first
        hold(folder, 3)
        await service.watch_once()
        assert (await answer(service))[1] == logits(folder.with_name("3"))

    asyncio.run(play())


def test_a_version_that_nobody_has_a_copy_of_is_told(folder: Path) -> None:
    source = FolderSource("served", folder)
    first = source.wanted()
    hold(folder, 2)
    with pytest.raises(RegistryError, match="holds another bundle than version"):
        source.fetch(first)


def test_a_copy_that_was_damaged_is_made_again(folder: Path) -> None:
    source = FolderSource("served", folder)
    copy = source.fetch(source.wanted())
    (copy / "policy.safetensors").write_bytes(b"")
    assert source.fetch(source.wanted()) == copy
    load_bundle(copy)


def test_a_cache_that_cannot_be_written_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    source = FolderSource("served", folder)
    with pytest.raises(
        RegistryError, match=r"^/dev/null/\.cache.* cannot be written: .*HOME"
    ) as no:
        source.fetch(source.wanted())
    assert "\n" not in str(no.value)


def test_a_link_to_a_folder_may_be_moved(folder: Path) -> None:
    link = folder.with_name("current")
    link.symlink_to(folder.with_name("1"))
    [source] = find_sources([f"moon={link}"], None)
    first = source.wanted()
    link.unlink()
    link.symlink_to(folder.with_name("2"))
    assert source.wanted() != first


def test_a_policy_of_the_package_stays_version_1() -> None:
    [source] = find_sources(["zoo:lunarlander"], None)
    assert (source.name, source.wanted(), source.knows(1)) == ("lunarlander", 1, True)
