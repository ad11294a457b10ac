"""Pickles as plain data: containers, numbers, strings and None.

A pickle is a program. This reader admits none: its unpickler resolves no name at all, so that nothing else can
come out, and everything else is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from fabrictwin.base.errors import ConfigError

MAX_BYTES = 256 << 20


class PlainUnpickler(pickle.Unpickler):
    """Takes containers, numbers, strings and None; resolves no names and no persistent objects."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse every name: importing one is what makes a pickle run code."""
        raise pickle.UnpicklingError(f"names {module_name[:60]}.{global_name[:60]}, which plain data never does")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse."""
        raise pickle.UnpicklingError("has a persistent object, which plain data never has")


def unpickled(data: bytes, file: str) -> Any:
    """Plain data of a pickle. Raises ConfigError where it is none, or holds more than plain data."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES >> 20} MiB", file=file)
    _check_sizes(data, file)
    try:
        return PlainUnpickler(io.BytesIO(data), encoding="latin-1").load()
    except MemoryError:
        raise ConfigError("asks for more memory than a dump needs", file=file) from None
    except Exception as error:
        # pickle raises whatever its opcodes lead to: AttributeError, IndexError, OverflowError, ...
        raise ConfigError(f"is no pickle of plain data: {error}", file=file) from None


def _check_sizes(data: bytes, file: str) -> None:
    """Refuse opcodes that reserve memory by a number of their own, or copy what was built before."""
    import pickletools

    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if (
                opcode.name in ("LONG_BINPUT", "PUT", "BINPUT")
                and isinstance(argument, int)
                and argument > len(data)
            ):
                raise ConfigError("names a memo beyond its own size", file=file)
            if opcode.name in (
                "GLOBAL",
                "STACK_GLOBAL",
                "INST",
                "OBJ",
                "REDUCE",
                "BUILD",
                "NEWOBJ",
                "NEWOBJ_EX",
                "EXT1",
                "EXT2",
                "EXT4",
                "PERSID",
                "BINPERSID",
                "NEXT_BUFFER",
            ):
                raise ConfigError(f"holds {opcode.name}, which plain data never does", file=file)
            if number > 50_000_000:
                raise ConfigError("holds more than a dump does", file=file)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"is no pickle: {error}", file=file) from None
