"""Kinds of models and algorithms, found by name: those that ship here, and `module:Class` of yours.

A kind is a light settings class (no torch and no Ray at import) that names its implementation,
which is imported at first use. No other code asks which kind it has: what differs between kinds
is in these two classes.
"""

from __future__ import annotations

import importlib
import json
from types import ModuleType
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from custom_models.text import nearest, one_line

UNKNOWN_KIND = "unknown_kind"
"""Type of pydantic's error for a name that `Kinds` cannot find."""
_allowed: set[str] = set()


def allow_module(name: str) -> None:
    """Lets bundles, which may be a stranger's, import kinds from this module and its submodules."""
    _allowed.add(name)


def import_own(name: str) -> ModuleType:
    """Imports a module of the user's own.

    Raises:
        ValueError: with the reason and what to do, if that fails.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing a user's module may raise anything
        reason = one_line(error) or type(error).__name__
        raise ValueError(
            f"module {name} cannot be imported ({reason}); install it or put its folder on "
            f"PYTHONPATH"
        ) from error


def import_object(path: str) -> Any:
    """The object that `module:name` refers to, in this package or the user's code.

    Raises:
        ValueError: if the module cannot be imported or has no such name.
    """
    module, _, name = path.partition(":")
    imported = import_own(module)
    if not hasattr(imported, name):
        near = nearest(name, callables_of(imported))
        hint = f"did you mean {near}?" if near else "check the name"
        raise ValueError(f"module {module} has no {name}; {hint}")
    return getattr(imported, name)


def callables_of(module: ModuleType) -> list[str]:
    """Names that a hint may suggest."""
    return [name for name, value in vars(module).items() if callable(value)]


PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0)]
UnitFloat = Annotated[float, Field(ge=0.0, le=1.0)]


class Group(BaseModel):
    """Settings that refuse unknown keys, NaN and infinity, and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Kind(Group):
    """Settings of one kind of model or algorithm."""

    kind: ClassVar[str] = ""
    """Name of a kind that ships with the package."""
    implementation: ClassVar[str]
    """`module:Class` of the implementation."""

    name: str = ""
    """The kind's name: that of a built-in kind, or `module:Class`."""

    @model_validator(mode="after")
    def _called_by_its_class(self) -> Self:
        if not self.name:
            self.__dict__["name"] = self.full_name()  # of an immutable model, once
        elif self.name != self.full_name():
            raise ValueError(f"name={self.name}, and these are settings of {self.full_name()}")
        return self

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Settings of this kind from a file, which may be that of an earlier release."""
        return values

    @classmethod
    def full_name(cls) -> str:
        """The name under which `Kinds` finds the class."""
        return cls.__dict__.get("kind") or f"{cls.__module__}:{cls.__qualname__}"

    @property
    def short_name(self) -> str:
        """Name for folders and tables: without the module."""
        return self.name.rpartition(":")[2]

    def import_implementation(self) -> Any:
        """The implementation.

        Raises:
            ValueError: if it cannot be imported.
        """
        return import_object(self.implementation)


AnyKind = TypeVar("AnyKind", bound=Kind)


class Kinds(Generic[AnyKind]):
    """Finds kinds by name.

    Args:
        word: what they are, for messages: `model`, `algorithm`.
        base: what a class from outside must derive from.
        ours: the built-in kinds.
    """

    def __init__(self, word: str, base: type[AnyKind], *ours: type[AnyKind]) -> None:
        self._word, self._base = word, base
        self.ours = {each.kind: each for each in sorted(ours, key=lambda each: each.kind)}
        self._outside: dict[str, type[AnyKind]] = {}

    def find(self, name: str, *, trusted: bool = True) -> type[AnyKind]:
        """The settings class of that name.

        Args:
            name: of a kind.
            trusted: False if the name is a stranger's; then only modules are imported that the
                operator has allowed, or that this process's own settings have named before.

        Raises:
            ValueError: if there is no such kind, or it may not be imported.
        """
        known = self.ours.get(name) or self._outside.get(name)
        if known is not None:
            return known
        module, colon, attribute = name.partition(":")
        if not (module and colon and attribute):
            raise ValueError(
                f"unknown {self._word} {name}; known: {', '.join(self.ours)}, or module:Class of "
                f"your own"
            )
        if not trusted and not any(f"{module}.".startswith(f"{each}.") for each in _allowed):
            raise ValueError(
                f"the {self._word} {name} is not a part of rl-service; if you trust that module, "
                f"allow it with --allow-module {module}"
            )
        found = import_object(name)
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise ValueError(
                f"{name} is no {self._word}: it must be a class that derives from "
                f"{self._base.__module__}.{self._base.__name__}"
            )
        self._outside[name] = found
        return found

    def get(self, name: str) -> type[AnyKind] | None:
        """As `find`; None if there is no such kind."""
        try:
            return self.find(name)
        except ValueError:
            return None

    def validator(self, *, trusted: bool) -> WrapValidator:
        """For a pydantic field: settings of any kind, checked by the class that `name` names."""

        def validate(value: Any, _: Any, info: ValidationInfo) -> Any:
            if isinstance(value, self._base) or not isinstance(value, dict):
                return self._base.model_validate(value)
            try:
                kind = self.find(str(value.get("name")), trusted=trusted)
            except ValueError as error:
                reason = {"reason": str(error)}
                raise PydanticCustomError(UNKNOWN_KIND, "{reason}", reason) from error
            value = kind.upgraded(value)
            if info.mode == "json":  # a list of JSON is a tuple, which strict Python refuses
                return kind.model_validate_json(json.dumps(value), strict=True)
            return kind.model_validate(value)

        return WrapValidator(validate)
