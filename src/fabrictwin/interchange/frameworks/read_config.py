"""Which framework wrote a configuration, and the training section that it asks for."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.base.whole_numbers import read_json
from fabrictwin.base.yamlfile import read_yaml
from fabrictwin.interchange.frameworks import deepspeed, megatron, nemo, torchtitan
from fabrictwin.interchange.frameworks.settings import Setting, Settings, flattened, json_lines, toml_lines
from fabrictwin.interchange.frameworks.shell_arguments import Word, program_arguments
from fabrictwin.workload.job.training_checks import check_layout
from fabrictwin.workload.job.workload_section import Training

MOST_NESTED = 64


# the settings, in any framework's names, that a key of the section comes from
SOURCES = {
    "parallel.tp": (
        "tensor_model_parallel_size",
        "parallelism.tensor_parallel_degree",
        "tensor_parallel.autotp_size",
    ),
    "parallel.pp": ("pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree"),
    "parallel.vp": ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage"),
    "parallel.cp": ("context_parallel_size", "parallelism.context_parallel_degree"),
    "parallel.ep": ("expert_model_parallel_size", "parallelism.expert_parallel_degree"),
    "parallel.expert_tp": ("expert_tensor_parallel_size",),
    "sequence": ("seq_length", "training.seq_len"),
    "sequence_parallel": ("sequence_parallel",),
    "wide_layers": ("first_last_layers_bf16",),
    "routing": ("moe_expert_capacity_factor",),
    "overlap.experts": ("overlap_moe_expert_parallel_comm",),
}


@record
class Beside:
    """What a configuration leaves open: the model's config.json, the sequence length, tokens of the vocabulary."""

    model: str | None = None
    sequence: int | None = None
    vocabulary: int | None = None


@record
class ImportedConfig:
    """A `workload.training` section, the framework that it came from, and what of it has no effect here."""

    framework: str
    training: dict[str, Any]
    unused: tuple[Setting, ...]
    assumed: tuple[str, ...]

    @property
    def workload(self) -> dict[str, Any]:
        """The `workload` section of a spec."""
        return {"training": self.training}

    @property
    def yaml(self) -> str:
        """The section as YAML, with what was assumed and the keys without effect as comments."""
        text = yaml.safe_dump({"workload": self.workload}, sort_keys=False, default_flow_style=None, width=100)
        rows = [f"# of {self.framework}'s configuration", *text.splitlines()]
        rows += [f"# assumed: {one}" for one in self.assumed]
        if self.unused:
            rows.append(f"# without effect here, {len(self.unused)} in all:")
        rows += [f"#   {one.key}{f' (line {one.line})' if one.line else ''}" for one in self.unused]
        return "\n".join(rows) + "\n"


def read_config(
    source: Path | Sequence[str], beside: Beside | None = None, *, folder: Path = Path()
) -> ImportedConfig:
    """Read a file, told apart by what it holds, or Megatron-LM's arguments. Raises ConfigError.

    A model that is named by its file is looked for from `folder`.
    """
    if isinstance(source, Path):
        return read_text_config(read_text(source), str(source), beside, folder=folder)
    words = [Word(word, 0) for word in source]
    given = megatron.settings_of([Word(word.text, 1) for word in words], None)
    given.found = {name: Setting(one.value, one.key) for name, one in given.found.items()}
    return _megatron(given, beside or Beside(), folder)


def read_text_config(
    text: str, file: str, beside: Beside | None = None, *, folder: Path = Path()
) -> ImportedConfig:
    """Read a configuration's text. Raises ConfigError."""
    chosen = beside or Beside()
    name = file.lower()
    if name.endswith(".json") or text.lstrip()[:1] == "{":
        given = Settings(file, _of_json(text, file))
        return _ended("DeepSpeed", given, chosen, folder, lambda: deepspeed.training_of(given))
    if name.endswith(".toml"):
        given = Settings(file, _of_toml(text, file))
        return _ended(
            "torchtitan", given, chosen, folder, lambda: torchtitan.training_of(given, model=bool(chosen.model))
        )
    if name.endswith((".yaml", ".yml")):
        data, lines = read_yaml(text, file)
        _mapping(data, file)
        found = flattened(data, {tuple(map(str, path)): line for path, line in lines.items()})
        framework = "Megatron-Bridge" if nemo.is_bridge(found) else "NeMo"
        return _megatron(nemo.settings_of(found, file), chosen, folder, framework)
    return _megatron(megatron.settings_of(program_arguments(text, file), file), chosen, folder)


def _mapping(data: Any, file: str) -> None:
    if not isinstance(data, dict):
        raise ConfigError("expected keys and values", file=file)


def _of_json(text: str, file: str) -> dict[str, Setting]:
    try:
        data = read_json(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"is no JSON: {error.msg}", file=file, line=error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is no JSON that can be read: {error}", file=file) from None
    _mapping(data, file)
    found = flattened(data, {})
    lines = json_lines(text, [tuple(key.split(".")) for key in list(found)[:1000]])
    return {key: Setting(one.value, key, lines.get(tuple(key.split(".")))) for key, one in found.items()}


def _of_toml(text: str, file: str) -> dict[str, Setting]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is no TOML: {error}", file=file) from None
    except (ValueError, RecursionError):
        raise ConfigError("is no TOML that can be read", file=file) from None
    return flattened(data, toml_lines(text))


def _megatron(given: Settings, beside: Beside, folder: Path, framework: str = "Megatron-LM") -> ImportedConfig:
    if not given.found:
        raise ConfigError(
            "got no options, expected Megatron-LM's arguments, DeepSpeed's JSON, torchtitan's TOML or NeMo's YAML",
            file=given.file,
        )

    def section() -> dict[str, Any]:
        if beside.sequence:
            given.found["seq_length"] = Setting(beside.sequence, "--sequence")
        return megatron.training_of(
            given, software=framework.lower(), vocabulary=beside.vocabulary, model=bool(beside.model)
        )

    return _ended(framework, given, beside, folder, section)


def _ended(
    framework: str, given: Settings, beside: Beside, folder: Path, section: Callable[[], dict[str, Any]]
) -> ImportedConfig:
    """The section with what stands beside it, checked as a spec's is."""
    training = section()
    if beside.model:
        training = {"model": beside.model, **training}
    elif "model" not in training:
        raise ConfigError(
            f"got no model, which {framework} leaves to the program: --model CONFIG.json", file=given.file
        )
    if beside.sequence:
        training["sequence"] = beside.sequence
    elif "sequence" not in training:
        raise ConfigError(f"got no length of sequences, which {framework} leaves to the program: --sequence",
                          file=given.file)  # fmt: skip
    if not training.get("parallel"):
        training.pop("parallel", None)

    def wrong(where: str, message: str) -> ConfigError:
        name = next((one for one in SOURCES.get(where, ()) if one in given.found), None)
        if name is not None:
            return given.error(name, message)
        return ConfigError(message, file=given.file, key=f"workload.training.{where}")

    try:
        checked = Training.model_validate(training)
    except ValidationError as error:
        first = error.errors()[0]
        raise wrong(".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")) from None
    try:
        check_layout(checked, checked.read_model(folder), wrong)  # type: ignore[arg-type]
    except ConfigError as error:
        raise error.within(file=given.file) from None
    return ImportedConfig(framework, training, tuple(given.unused()), tuple(given.assumed))
