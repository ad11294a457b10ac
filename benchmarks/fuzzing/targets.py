"""All targets of `fuzz.py` by name: everything that reads what others wrote."""

from __future__ import annotations

from collections.abc import Callable

from fuzzing.captures import CAPTURES
from fuzzing.commands import COMMANDS
from fuzzing.configurations import CONFIGURED
from fuzzing.diagnosis import DIAGNOSIS
from fuzzing.formats import FORMATS
from fuzzing.job_traces import JOB_TRACES
from fuzzing.live import LIVE
from fuzzing.page import PAGE
from fuzzing.serving import SERVING
from fuzzing.specs import SPECS
from fuzzing.studies import STUDIES
from fuzzing.subnet import SUBNET
from fuzzing.target import Target
from fuzzing.values import VALUES

TARGETS: dict[str, Callable[[], Target]] = {
    **SPECS,
    **FORMATS,
    **CAPTURES,
    **VALUES,
    **COMMANDS,
    **SUBNET,
    **LIVE,
    **PAGE,
    **SERVING,
    **STUDIES,
    **CONFIGURED,
    **DIAGNOSIS,
    **JOB_TRACES,
}
