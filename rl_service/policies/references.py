"""Names of policies and aliases, and the references that people type.

No name can be a path: each is a word of a few harmless characters.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rl_service.common.errors import RegistryError

ZOO = "zoo"
_MAX_LENGTH = 100
_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{_MAX_LENGTH - 1}}}", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_RULE = (
    f"use up to {_MAX_LENGTH} lower-case letters, digits, '-', '_' and '.', a letter or digit first"
)


class Reference(NamedTuple):
    """What of the registry is meant; at most one of `alias` and `version` is given."""

    name: str
    alias: str | None = None
    version: int | None = None


def check_name(name: str) -> str:
    """Returns the name of a policy.

    Raises:
        RegistryError: if it is none.
    """
    if name == ZOO:
        raise RegistryError(f"a policy cannot be called {ZOO}: {ZOO}:NAME is one of the package's")
    return _checked("policy name", name)


def check_alias(alias: str) -> str:
    """Returns an alias.

    Raises:
        RegistryError: if it is none.
    """
    return _checked("alias", alias)


def parse_reference(text: str) -> Reference:
    """Reads `name`, `name@alias` or `name:version`.

    Raises:
        RegistryError: if it is none of these.
    """
    name, separator, rest = _split(text)
    if separator == "@":
        return Reference(check_name(name), alias=check_alias(rest))
    if separator == ":":
        if not _VERSION.fullmatch(rest):
            raise RegistryError(
                f"{rest!r} in policy {text!r} is no version; give a number from 1, as in {name}:3, "
                f"or an alias, as in {name}@best"
            )
        return Reference(check_name(name), version=int(rest))
    return Reference(check_name(name))


def as_policy_name(*parts: str) -> str:
    """A name out of parts: `my.envs:Maze`, `mlp` and `ppo` become `my.envs_maze-mlp-ppo`."""
    words = [re.sub(r"[^a-z0-9._-]+", "_", part.lower()) for part in parts]
    return "-".join(words).lstrip("._-")[:_MAX_LENGTH]


def _checked(what: str, word: str) -> str:
    if not _NAME.fullmatch(word):
        raise RegistryError(f"{word[:_MAX_LENGTH]!r} is no {what}; {_RULE}")
    return word


def _split(text: str) -> tuple[str, str, str]:
    """Text before the first `@` or `:`, that character, and the rest."""
    found = re.search("[@:]", text)
    if found is None:
        return text, "", ""
    return text[: found.start()], found.group(), text[found.end() :]
