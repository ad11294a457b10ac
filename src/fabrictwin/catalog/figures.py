"""A catalog entry and its figures. Every number is a `Figure`: a value with its unit and its source.

A figure is a string (`312 TFLOP/s`), which then takes the source of its entry, or a mapping with `value`,
`source`, `estimate`, `note`. An estimate is a figure that its source does not state: carried over from a
sibling, derived, or a share of a measured sum; its note says how.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

T = TypeVar("T")


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Source(Model):
    """Where figures come from."""

    title: str
    url: str = ""


class Figure(Model, Generic[T]):
    """One hardware figure. `value` is a plain number in internal units, `text` what the data file says."""

    value: T
    text: str = ""
    source: str
    estimate: bool = False
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, str):
            data = {"value": data}
        if not isinstance(data, dict):
            raise ValueError(f"got {data!r}, expected a string with its unit")
        data = dict(data)
        default = (info.context or {}).get("source", "")
        if not data.get("source") and not default:
            raise ValueError("a figure without a source, and the entry names none either")
        data.setdefault("source", default)
        if isinstance(data.get("value"), str):
            data.setdefault("text", data["value"])
        return data

    def __reduce__(self) -> tuple[Any, ...]:
        """Go from one process to another: a class that a parameter made has no name to be found by."""
        kind = type(self)
        return _restored, (kind.__pydantic_generic_metadata__["origin"] or kind, dict(self.__dict__))


class SourcedPart(Model):
    """Part of an entry that carries a source of its own; without one it has the entry's."""

    source: str = ""
    estimate: bool = False
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _default_source(cls, data: Any, info: ValidationInfo) -> Any:
        return {"source": (info.context or {}).get("source", ""), **data} if isinstance(data, dict) else data


def _restored(kind: type[Model], fields: dict[str, Any]) -> Model:
    return kind.model_construct(**fields)


class Entry(Model):
    """A named thing in the catalog."""

    name: str
    title: str
    source: str = ""
    note: str = ""

    def computed(self) -> dict[str, str]:
        """Quantities that follow from the figures, for people: label to value with its unit."""
        return {}
