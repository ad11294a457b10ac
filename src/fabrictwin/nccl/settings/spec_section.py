"""`nccl:` of a spec: the release, and NCCL_* variables as they stand in the environment of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.nccl.settings.settings import Settings, from_mapping, read_settings
from fabrictwin.nccl.settings.version import DEFAULT, version


def job_settings(spec: Spec) -> Settings | None:
    """NCCL's settings for the spec's job, None where its collectives are the simple ones. Raises ConfigError."""
    if spec.run.collectives == "simple":
        return None
    return section_settings(spec) or from_mapping({})


def section_settings(spec: Spec) -> Settings | None:
    """Settings of the spec's `nccl` section, None where there is none. Raises ConfigError with file and line."""
    if spec.nccl is None:
        return None
    values = dict(spec.nccl)
    release = values.pop("version", DEFAULT)
    if not isinstance(release, str):
        raise spec.error("nccl.version", f"got {release!r}, expected text such as '2.27.7', in quotation marks")
    try:
        version(release)
        return from_mapping(values, release=release)
    except ConfigError as error:
        key = error.key if error.key in values else "version"
        raise spec.error(f"nccl.{key}", error.message) from None


def settings_here(
    spec: Spec, environment: Mapping[str, str], *, release: str = "", conf: str | Path | None = None
) -> Settings:
    """The spec's, and over them those of an environment and a release of its own. Raises ConfigError."""
    own = section_settings(spec)
    if own is None:
        return read_settings(environment, release=release or DEFAULT, conf=conf)
    found = read_settings({**dict(own.given), **environment}, release=release or str(own.release), conf=conf)
    return replace(found, notes=tuple(dict.fromkeys((*own.notes, *found.notes))))
