"""The keys of a model's `config.json`, read with checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record

_LARGEST = 10**9


@record
class Config:
    """The keys of a model's file; every error names its key."""

    data: Mapping[str, Any]
    name: str
    family: str
    where: str | None  # the file

    def error(self, key: str, message: str) -> ConfigError:
        return ConfigError(message, file=self.where, key=key)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise self.error(key, f"got {value!r}, expected a whole number from 1 upwards")
        return value

    def optional(self, key: str) -> int:
        """0 where the key is absent, null or 0."""
        return self.count(key) if self.data.get(key) else 0

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"got {value!r}, expected true or false")
        return value

    def one_of(self, key: str, *known: str) -> None:
        value = self.data.get(key, known[0])
        if value not in known:
            raise self.error(key, f"got {value!r}, expected {' or '.join(known)}")

    def without(self, *keys: str) -> None:
        for key in keys:
            if self.data.get(key):
                raise self.error(key, f"got {self.data[key]!r}, expected a model without it: it is not counted")

    def head_size(self, hidden_key: str, heads_key: str) -> int:
        if self.data.get("head_dim") is not None:
            return self.count("head_dim")
        hidden, heads = self.count(hidden_key), self.count(heads_key)
        if hidden % heads:
            raise self.error(
                heads_key,
                f"got {hidden_key} {hidden} and {heads_key} {heads}, expected one that divides the other",
            )
        return hidden // heads

    def kv_heads(self, heads: int) -> int:
        found = self.count("num_key_value_heads", heads)
        if heads % found:
            raise self.error(
                "num_key_value_heads",
                f"got {found} key-value heads, expected a divisor of the {heads} attention heads",
            )
        return found
