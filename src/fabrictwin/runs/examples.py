"""The bundled examples: where they are, and writing them out for who has only the wheel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.textfile import writing

_PACKAGE = Path(__file__).parents[1]
MODELS = "models"  # what specs refer to


def examples_folder() -> Path:
    """The folder of the examples: in the package where it was installed, else in the checkout."""
    installed = _PACKAGE / "examples"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "examples"


def example_names() -> list[str]:
    """Names of the specs among the examples."""
    return sorted(path.stem for path in examples_folder().glob("*.yaml"))


def what_it_shows(name: str) -> str:
    """The first sentence of the comment that an example begins with."""
    lines = (examples_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("# "), lines))
    return re.split(r"(?<=\.) (?=[A-Z])", comment, maxsplit=1)[0]


def write_examples(names: Sequence[str], into: Path) -> list[Path]:
    """Write the specs of these names, or all examples, with the models that they refer to; the specs' paths.

    Raises ConfigError for an unknown name, and where a file of another content is there.
    """
    folder, known = examples_folder(), example_names()
    for name in names:
        if name not in known:
            raise ConfigError(
                f"got {name!r}, expected one of {', '.join(known)}{did_you_mean(name, known)}", key="NAME"
            )
    if names:
        sources = [folder / f"{name}.yaml" for name in names] + sorted((folder / MODELS).iterdir())
    else:
        sources = [
            path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts
        ]
    targets = [into / path.relative_to(folder) for path in sources]
    _refuse_others(zip(sources, targets, strict=True))
    for source, target in zip(sources, targets, strict=True):
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return [target for target in targets if target.parent == into and target.suffix == ".yaml"]


def _refuse_others(pairs: Iterable[tuple[Path, Path]]) -> None:
    for source, target in pairs:
        if target.exists() and (not target.is_file() or target.read_bytes() != source.read_bytes()):
            raise ConfigError("is there already and differs from the example", file=target)
