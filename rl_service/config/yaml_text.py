"""YAML for settings: no duplicate keys, and `1e-4` is a number."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from custom_models.text import one_line
from rl_service.common.errors import SettingsError

_EXPONENT_WITHOUT_DOT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses duplicate keys; plain YAML silently keeps the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for i, key in enumerate(keys) if key in keys[:i]]
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {twice[0]} is given twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-4 as text, since it has no dot.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", _EXPONENT_WITHOUT_DOT, list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """Parses YAML text.

    Raises:
        yaml.YAMLError: if it is not valid YAML.
    """
    return yaml.load(text, Loader=_Loader)


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Reads a YAML file that holds settings.

    Raises:
        SettingsError: if it cannot be read or is not a mapping.
    """
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path} cannot be read: {_reason(error)}") from error
    except yaml.YAMLError as error:
        raise SettingsError(
            f"settings file {path} is not valid YAML: {one_line(error)}; fix that line"
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(
            f"settings file {path} holds no settings: expected groups such as `algorithm:`, "
            f"got {type(content).__name__}"
        )
    return content


def _reason(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return error.strerror or one_line(error)
    return "it is not UTF-8 text"
