"""Options of `vllm serve` by release, as its own parser has them.

`options.csv` was written by the parsers of vLLM 0.12.0, 0.15.1, 0.19.0 and 0.33.0 (`make_arg_parser`): an option's
name, its short names, what follows it, the first and the last of these releases that know it, and its choices
where the parser has them and they settle a layout. `one` value, `several`, one that is `optional`; a `switch` has
none, nor has a `bool`, which `--no-` in front denies.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Literal

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.serving.scheduler.release import NAMES

Takes = Literal["one", "several", "optional", "switch", "bool"]
TABLE = Path(__file__).with_name("options.csv")
SWAPPED = {"enable": "disable", "disable": "enable"}


@record
class Option:
    """An option of a release's parser.

    Attributes:
        name: Without dashes in front.
        takes: What follows it.
        choices: Values that the parser takes, empty where it takes any.
    """

    name: str
    takes: Takes
    choices: tuple[str, ...] = ()

    @property
    def has_value(self) -> bool:
        """Return if a value has to follow."""
        return self.takes in ("one", "several")


@cache
def options(release: str) -> dict[str, Option]:
    """Return a release's options by name and by short name."""
    place = NAMES.index(release)
    found: dict[str, Option] = {}
    with TABLE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if not NAMES.index(row["first"]) <= place <= NAMES.index(row["last"]):
                continue
            option = Option(row["option"], row["kind"], tuple(row["choices"].split()))  # type: ignore[arg-type]
            found[option.name] = option
            found |= dict.fromkeys((f"-{short}" for short in row["short"].split()), option)
    return found


def find_option(word: str, release: str) -> tuple[Option, bool]:
    """Return the option that a word means, and if it is not denied. Raises ConfigError in vLLM's words.

    As argparse does, a beginning that only one option has will do.
    """
    known = options(release)
    if not word.startswith("--"):
        if word in known:
            return known[word], True
        raise _unknown(word, release)
    name = word[2:].replace("_", "-")
    if name in known:
        return known[name], True
    denied = _denied(name, release)
    if denied is not None:
        return known[denied], False
    begin = [option for key, option in known.items() if not key.startswith("-") and key.startswith(name)]
    if len(begin) == 1 and name:
        return begin[0], True
    raise _unknown(word, release)


def _denied(name: str, release: str) -> str | None:
    """Return the switch that a name denies: --no-X, and from 0.33 on --disable-X of --enable-X and its reverse."""
    known, forms = options(release), [name.removeprefix("no-")] if name.startswith("no-") else []
    first, _, rest = name.partition("-")
    if release == NAMES[-1] and first in SWAPPED:
        forms.append(f"{SWAPPED[first]}-{rest}")
    return next((form for form in forms if form in known and known[form].takes == "bool"), None)


def _unknown(word: str, release: str) -> ConfigError:
    name = word.lstrip("-").replace("_", "-")
    others = [other for other in NAMES if other != release and name in options(other)]
    hint = f" (vLLM {', '.join(others)} has it)" if others else did_you_mean(name, list(options(release)))
    return ConfigError(f"vllm: error: unrecognized arguments: {word}{hint}", key="--check")
