"""Writes docs/settings.md from the settings classes: `make docs`.

Texts are the docstrings under the fields; types, defaults and bounds are the fields' own.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from custom_models.configs import MODELS
from custom_models.kinds import Kind
from rl_service.config.algorithms import ALGORITHMS
from rl_service.config.settings import Settings
from rl_service.tuning.plan import TuningSettings

PAGE = Path(__file__).with_name("settings.md")
INTRODUCTION = """# Settings

<!-- Written by `make docs` from the docstrings in rl_service/config/settings.py, algorithms.py,
custom_models/model_config.py, configs.py and rl_service/tuning/plan.py: edit those. -->

Defaults are those without a preset. `train` starts from a preset if there is one for the
environment, the model and the algorithm, and says so.

A settings file has up to seven groups and a seed. `--set GROUP.KEY=VALUE` sets one value:

```sh
rl-service train --config my.yaml --set env.id=CartPole-v1 --set 'model.hidden_sizes=[128]'
```

Later sources override earlier ones: defaults, the preset of the environment, model and algorithm
(if there is one in [tune_configs](../tune_configs)), the file of `--config`, flags such as `-ne`,
`--set`. Each run writes its resolved settings to its `config.yaml`. Unknown keys and values out of
range are refused.

The keys of `model` and `algorithm` depend on their `name`, which may also be `module:Class` for one
of your own: [extending.md](extending.md).
"""
TUNING = """## The tuning file

Keys of a file for `rl-service tune`; [tuning.md](tuning.md) explains them with an example.
"""
_HEAD = "| setting | default | values | meaning |\n|---|---|---|---|\n"
_TYPES = {
    bool: "`true`, `false`",
    int: "integer",
    float: "number",
    str: "text",
    type(None): "`null`",
}
_KINDS = {"model": MODELS, "algorithm": ALGORITHMS}
_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def page() -> str:
    """The whole page, in Markdown."""
    parts = [INTRODUCTION]
    for group, field in Settings.model_fields.items():
        parts.append(f"## `{group}`\n")
        if group == "seed":
            parts.append(_HEAD + _row(Settings, group, ""))
        elif group in _KINDS:
            parts += _kinds(_KINDS[group].ours, f"{group}.")
        else:
            parts += _group(field.annotation, f"{group}.")
    parts += [TUNING, _table(TuningSettings, "")]
    for key in ("search_alg", "scheduler"):
        parts.append(f"## `{key}` of the tuning file\n")
        annotation = TuningSettings.model_fields[key].annotation
        kinds = {kind.model_fields["name"].default: kind for kind in get_args(annotation)}
        parts += _kinds(kinds, f"{key}.") if kinds else _group(annotation, f"{key}.")
    return "\n".join(parts)


def _kinds(kinds: Mapping[str, type[BaseModel]], prefix: str) -> Iterator[str]:
    """A heading and a table for each kind of a group whose keys depend on `name`."""
    for name, kind in kinds.items():
        yield f"### `{prefix}name: {name}`\n"
        yield from _group(kind, prefix)


def _group(group: Any, prefix: str) -> Iterator[str]:
    if "__doc__" in vars(group) and group.__doc__:
        yield f"{inspect.cleandoc(group.__doc__)}\n"
    yield _table(group, prefix)


def _table(group: type[BaseModel], prefix: str) -> str:
    rows = [_row(group, name, prefix) for name in group.model_fields if not _is_tag(group, name)]
    return _HEAD + "".join(rows) if rows else "No further keys.\n"


def _is_tag(group: type[BaseModel], name: str) -> bool:
    """Whether the field is the name of a kind, its only value, which is in the heading."""
    annotation = group.model_fields[name].annotation
    is_only_value = get_origin(annotation) is Literal and len(get_args(annotation)) == 1
    return is_only_value or (issubclass(group, Kind) and name == "name")


def _row(group: type[BaseModel], name: str, prefix: str) -> str:
    field = group.model_fields[name]
    cells = [f"`{prefix}{name}`", _default(field), _values(field.annotation, field.metadata)]
    return f"| {' | '.join([*cells, _meaning(group, name)])} |\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        value = getattr(value, "name", {})
    text = value if isinstance(value, str) and value.strip() else json.dumps(value)
    return f"`{text}`"


def _values(annotation: Any, metadata: list[Any]) -> str:
    """Type and bounds, such as `integer > 0, or null`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values(arguments[0], arguments[1].metadata)
    bounds = [
        f"{sign} {getattr(each, name):,}".removesuffix(".0")
        for each in metadata
        for name, sign in _BOUNDS.items()
        if hasattr(each, name)
    ]
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (list, tuple):
        return f"list: {_values(arguments[0], [])}"
    if annotation in _TYPES:
        return " ".join([_TYPES[annotation], ", ".join(bounds)]).strip()
    if origin is dict or not any(each is type(None) for each in arguments):
        return "mapping"
    return ", or ".join(_values(each, []) for each in arguments)


def _meaning(group: type[BaseModel], name: str) -> str:
    """The docstring under a field, of the class or the nearest base that has one; else empty."""
    for each in group.__mro__:
        text = _docstrings(each).get(name) if issubclass(each, BaseModel) else None
        if text:
            return " ".join(text.replace("None:", "`null`:").split())
    return ""


def _docstrings(group: type[BaseModel]) -> dict[str, str]:
    """Docstrings under the fields that a class declares itself."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    body = definition.body
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
