"""Models by their name on the Hugging Face Hub, where their files are on this machine already.

`huggingface_hub` keeps what it downloaded in `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else
`~/.cache/huggingface/hub`: `models--ORG--NAME/refs/REVISION` holds a commit, `snapshots/COMMIT/` the files as of
it (huggingface_hub's guide "Understand caching"). Nothing is downloaded here.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from fabrictwin.base.errors import ConfigError, quoted

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{6,64}")


def cache_folder() -> Path:
    """Return where the Hub's files are kept."""
    named = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(named) if named else Path(home) / "hub"


def config_of(model: str, folder: Path) -> Path:
    """Return the config.json that `model` names: a path from `folder`, or a name on the Hub that is cached.

    Raises ConfigError for a name on the Hub whose config.json is not here.
    """
    path = folder / model
    if path.exists() or not _NAME.fullmatch(model) or model.endswith((".json", ".yaml", ".yml")):
        return path
    cached = cache_folder() / f"models--{model.replace('/', '--')}"
    for commit in _commits(cached):
        found = cached / "snapshots" / commit / "config.json"
        if found.is_file():
            return found
    raise ConfigError(
        f"got {quoted(model)}, which is no file here and not in the cache of Hugging Face; `hf download {model} "
        f"config.json` puts it there, or name a config.json saved from https://huggingface.co/{model}",
        key="workload.training.model",
    )


def _commits(cached: Path) -> list[str]:
    """Commits of the main branch first, then whichever there are, in order of their names."""
    commits = []
    with suppress(OSError, ValueError):
        commits.append((cached / "refs" / "main").read_text(encoding="ascii").strip())
    with suppress(OSError):
        commits += sorted(entry.name for entry in (cached / "snapshots").iterdir())
    return [commit for commit in commits if _COMMIT.fullmatch(commit)]
