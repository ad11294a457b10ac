"""Specs from wherever people have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabrictwin.cluster.spec.spec import Origin, Spec, load_spec, read_spec

if TYPE_CHECKING:
    from fabrictwin.interchange.frameworks.read_config import ImportedConfig

Source = Spec | str | Path | Mapping[str, Any]


def load(source: Source, *, folder: str | Path = ".") -> Spec:
    """Return the spec of a file, of plain data, or the spec itself.

    Relative paths in plain data count from `folder`. Raises ConfigError: file, line, key, what was got and
    expected.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, Mapping):
        return read_spec(dict(source), Origin(Path(folder), None))
    return load_spec(source)


def import_config(
    source: str | Path | Sequence[str],
    *,
    model: str | None = None,
    sequence: int | None = None,
    vocabulary: int | None = None,
) -> ImportedConfig:
    """Read Megatron-LM's arguments (a list, or a script), DeepSpeed's JSON, torchtitan's TOML or NeMo's YAML.

    `model` is a config.json where the file has no model (or to stand in its place), `sequence` the length of
    sequences, `vocabulary` its tokens before padding. `ft.load({**spec.to_dict(), "workload": found.workload})`
    puts it on a spec's cluster. Raises ConfigError.
    """
    from fabrictwin.interchange.frameworks.read_config import Beside, read_config

    chosen = Path(source) if isinstance(source, str | Path) else [str(word) for word in source]
    return read_config(chosen, Beside(model, sequence, vocabulary))
