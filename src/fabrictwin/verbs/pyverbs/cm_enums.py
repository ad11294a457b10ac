"""The connection manager's constants, flat and by enum class (`pyverbs.cm_enums`, `pyverbs.librdmacm_enums`)."""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.verbs.abi import connection_codes as connection

for _name, _value in vars(connection).items():
    if isinstance(_value, int):
        globals()[_name] = _value
    elif isinstance(_value, type) and issubclass(_value, IntEnum) and _value is not IntEnum:
        globals()[_name] = _value
        globals().update(_value.__members__)
del _name, _value
