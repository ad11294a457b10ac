"""Ask the command line parser of a real vLLM, on a machine without a GPU.

    python vllm_parser.py SOURCE lines < LINES     y or n for each line of options
    python vllm_parser.py SOURCE options           its options as JSON: by name, what follows them

SOURCE is the folder of an unpacked wheel, as for `vllm_real.py`. The platform is one of CPUs.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from typing import Any


def parser() -> Any:
    """Return the parser of `vllm serve`."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    return make_arg_parser(FlexibleArgumentParser())


def takes(action: Any) -> str:
    """Name what follows an option, as `options.csv` does."""
    if action.nargs == 0:
        forms = {word.split("-")[2] for word in action.option_strings if word.startswith("--")}
        return "bool" if "no" in forms or forms >= {"enable", "disable"} else "switch"
    return {"+": "several", "*": "several", "?": "optional"}.get(action.nargs, "one")


def accepted(found: Any, line: str) -> bool:
    """Tell if the parser takes a line."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            found.parse_args(shlex.split(line))
        except SystemExit:
            return False
    return True


def main(source: str, what: str) -> None:
    """Print what is asked for."""
    sys.path.insert(0, source)
    found = parser()
    if what == "lines":
        print("".join("y" if accepted(found, line) else "n" for line in sys.stdin.read().splitlines()))
        return
    names = {
        next(word for word in action.option_strings if word.startswith("--"))[2:]: takes(action)
        for action in found._actions
        if any(word.startswith("--") for word in action.option_strings)
    }
    print(json.dumps({name: kind for name, kind in names.items() if name != "help"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
