"""The end of a command: what is registered for it happens, and the rest is left to the operating system."""

from __future__ import annotations

import atexit
import os
import sys
import threading


def end(code: int) -> None:
    """End the process with an exit code, at once; return where it has to end as Python ends.

    Python frees every object first, and a compiler's by the hundred thousand: a quarter of a short command's time.
    Functions that are registered for the end are called as always. A profiler or debugger, which has something to
    say at the end, a thread that others wait for and an output that takes nothing more are left to Python.
    """
    watched = sys.getprofile() is not None or sys.gettrace() is not None
    waiting = any(not one.daemon for one in threading.enumerate() if one is not threading.current_thread())
    if watched or waiting:
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)
