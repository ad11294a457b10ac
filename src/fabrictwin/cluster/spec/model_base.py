"""The base of every model of a spec: unknown keys are errors, and nothing is changed afterwards."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A section of a spec."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, populate_by_name=True)
