"""What a Dockerfile says, read as far as docker/Dockerfile needs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

DOCKERFILE = Path(__file__).parents[2] / "docker" / "Dockerfile"


class Step(NamedTuple):
    """One instruction."""

    instruction: str
    text: str

    def words(self) -> list[str]:
        """Of an ENTRYPOINT, CMD or HEALTHCHECK in its JSON form."""
        words = json.loads(self.text[self.text.index("[") :])
        assert isinstance(words, list)
        return words

    def script(self) -> str:
        """What the shell of a RUN executes."""
        return re.sub(r"--mount=\S+\s+", "", self.text)


def steps(target: str) -> list[Step]:
    """All instructions that make a target, those of its base image in this file first."""
    stages: dict[str, list[Step]] = {}
    stage: list[Step] = []
    for step in _instructions(DOCKERFILE.read_text(encoding="utf-8")):
        if step.instruction == "FROM":
            image, name = re.fullmatch(r"(\S+) AS (\S+)", step.text).groups()  # type: ignore[union-attr]
            stage = stages[name] = list(stages.get(image, []))
        stage.append(step)
    return stages[target]


def last(target: str, instruction: str) -> Step:
    """The instruction that counts."""
    return [step for step in steps(target) if step.instruction == instruction][-1]


def arguments() -> dict[str, str]:
    """The build arguments and what they are without `--build-arg`."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    return dict(re.findall(r"(?m)^ARG (\w+)=(.*)$", text))


def _instructions(text: str) -> list[Step]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]
