"""The base of every model of a spec: unknown keys are errors, and nothing is changed afterwards."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A section of a spec.

    Where it may be left out, `model_construct()` stands for it: every default, and no schema of its own beside
    that of the section which holds it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, populate_by_name=True)
