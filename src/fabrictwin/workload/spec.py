"""The `workload` section of a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fabrictwin.errors import ConfigError
from fabrictwin.workload.models import Model, load_model, read_model

Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Parallel(Section):
    """How the model and the batch are divided over ranks. `dp` is what the GPUs leave where it is not given."""

    tp: Count = 1
    pp: Count = 1
    dp: Count | None = None


class Collective(Section):
    """How a gradient all-reduce is carried out. `channels` left out: as many as a group has ranks on a host."""

    algorithm: Literal["ring", "tree", "hierarchical"] = "ring"
    channels: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None


class Training(Section):
    """One training step of a dense transformer."""

    model: str | dict[str, Any]
    parallel: Parallel = Parallel()
    micro_batch_size: Count = 1
    micro_batches: Count | None = None
    global_batch: Count | None = None
    sequence: Count
    precision: Literal["bf16", "fp16"] = "bf16"
    gradient_precision: Literal["fp32", "same"] = "fp32"
    recompute: Literal["none", "full"] = "none"
    attention: Literal["flash", "materialised"] = "flash"
    pad_vocabulary: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = 128
    scatter_gather: bool = True
    gradients: Collective = Collective()

    @field_validator("model")
    @classmethod
    def _something(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        if not value:
            raise ValueError("got nothing, expected the path of a config.json or its keys")
        return value

    @model_validator(mode="after")
    def _one_batch(self) -> Training:
        if (self.micro_batches is None) == (self.global_batch is None):
            got = "neither" if self.micro_batches is None else "both"
            raise ValueError(f"got {got} of micro_batches and global_batch, expected one")
        return self

    def read_model(self, folder: Path) -> Model:
        """The model that `model` names (relative to `folder`) or spells out. Raises ConfigError."""
        if isinstance(self.model, str):
            return load_model(folder / self.model)
        try:
            return read_model(self.model, name=str(self.model.get("_name", "model")))
        except ConfigError as error:
            key = "workload.training.model" + (f".{error.key}" if error.key else "")
            raise ConfigError(error.message, key=key) from None


class Workload(Section):
    """What runs on the cluster."""

    training: Training


def workload_schema() -> dict[str, Any]:
    """The JSON schema of the `workload` section."""
    return Workload.model_json_schema()
