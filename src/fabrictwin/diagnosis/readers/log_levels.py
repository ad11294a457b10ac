"""How bad a program says that a line is, and which lines show that a job works.

What a program calls a warning or information did not end it, whatever its words, and what stands before a job's
work was survived. Heads of lines: Python's logging and warnings, vLLM, SGLang, DeepSpeed, TensorRT-LLM, glog and
PyTorch's c10d, TensorFlow, UCX, libfabric, logfmt. Signs of work: answered requests, throughput, iterations,
results.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.finding import Severity

_HEAD = 160  # of a line, in which its level stands
_SAID = re.compile(
    # a logger's first word, behind a time or not: `WARNING 04-12 18:36 [a.py:1]`, `[2026-01-04 01] WARNING a.py`
    r"^\W{0,3}(?:\d{1,6}: )?(?:\[?[\d:.,/ TZ+-]{6,40}\]?\W{0,4})?\[?(?P<first>DEBUG|INFO|WARN(?:ING)?)\b(?![-/\w])"
    r"|[-|] ?(?P<middle>DEBUG|INFO|WARN(?:ING)?) {0,4}[-|]"
    r"|\[(?P<bracketed>DEBUG|INFO|WARN(?:ING)?)\]"
    r"|^[\w.-]{1,40}: (?P<daemon>INFO|WARN(?:ING)?)\b:?"
    # of DeepSpeed's operators, torch.distributed.run, Ray: `2025 INFO worker.py:1 --`
    r"|^[\d:, -]{10,30}\s(?P<ray>INFO|WARNING) \w+\.py:\d+"
    r"|(?:^|\[)(?P<glog>[IW])\d{3,4} \d\d:\d\d:\d\d|\[(?P<c10d>[IW]) \w+\.c(?:pp|c):\d+\]"
    r"|\[TRT-LLM\] \[(?P<trt>[IW])\]|(?:^|: )(?P<tensorflow>[IW]) (?:external/|tensorflow/|xla/)"
    r"|\bUCX +(?P<ucx>WARN|INFO|DIAG)\b|\(\):\d+<(?P<ofi>warn|info)>|\blevel=(?P<logfmt>info|warn(?:ing)?)\b"
    r"|: \w*(?P<python>Warning): |^(?:\d{1,6}: )?(?P<wandb>wandb): "
)
_WORSE = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b(?=[:\]]| \d| \[| -| \|)")
_AN_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|\w(?:Error|Exception)\b|NCCL WARN|\b[Ee]rror: |^\W*E\d{4} |"
    # kernels go on after nearly all that fails in them; drivers name their device, whose domain may be folded
    r"\bBUG: |\bOops\b|\b\w+ (?:#|[0-9a-f]{4}):[0-9a-f]{2}:[0-9a-f]{2}\.\d(?: \w+)?: "
)
_WARNING = frozenset("WARNW")
# how a program goes on in spite of what it warns of
_GOES_ON = re.compile(
    r"\b[Ff]all(?:s|ing)? ?back\b|\bwill (?:proceed|continue|be (?:skipped|ignored|disabled|used instead))\b|"
    r"\b[Ii]gnor(?:e|es|ed|ing)\b|[Ff]or the best performance|\b[Uu]sing (?:the )?default\b|"
    r"not fully optimi[sz]ed|\bsub-?optimal\b|is deprecated|"
    r"\b(?:[Rr]eus|[Rr]etain|[Aa]djust|[Rr]ound)(?:ing|ed)\b|"
    r"\b[Uu]sing \S.{0,60} instead\b|; using \w|, using \w|\btrying (?:port|another|the next)\b|"
    r"\b[Tt]runcat(?:ing|ed)\b|"
    r"\b(?:[Dd]isabling|[Ss]witching to|[Oo]verriding|[Rr]emoving|[Ss]kipping|[Rr]everting|[Kk]eeping)\b"
)
# a line that ends so is no error to its program, whatever it calls it
_PASSED_OVER = re.compile(r"(?:[-;,(]|\.) ?(?:[Ss]kipp(?:ing|ed)|[Ii]gnor(?:ing|ed)|[Cc]ontinuing)\b[^.:;]{0,40}$")
# by one of these a job has come up, or to its end
_DONE = re.compile(
    r"Application startup complete|Uvicorn running on|The server is fired up|\[after training is done\]|"
    r"exits successfully|\bRESULT,[A-Z_]+,,|Out of bounds values\s*:\s*0 OK|"
    r"\btrain_runtime\b|successfully saved checkpoint"
)
# a line or two of these can come from a rank that has not heard yet of another's end
_WORK = re.compile(
    r"Avg (?:prompt|generation) throughput: |gen throughput \(token/s\)|"
    r"\"(?:GET|POST) /\S* HTTP/[\d.]+\" (?:200|4\d\d)\b|"
    r"\biteration\s+\d+/\s*\d+|elapsed time per iteration|\b(?:[\w.]*loss)['\"]?\s*[=:]\s*\d+\.\d|"
    r"\b(?:samples|tokens|examples)/s(?:ec)?\b|\bbusbw: +\d|:::MLLOG"
)
_SIGNS = (
    b"startup complete", b"Uvicorn", b"fired up", b"training is done", b"exits succ", b"RESULT,", b"Out of bounds",
    b"train_runtime", b"saved checkpoint", b"throughput", b" HTTP/", b"iteration", b"oss", b"/s", b"busbw",
    b":::MLLOG",
)  # fmt: skip
# what launchers put before the lines of the processes that they started
_TASK = re.compile(
    rb"\s{0,6}\d{1,6}: |\[\d{1,6},\d{1,6}\] ?<|\[(?:rank|default)\d{1,6}\]|\(\w[\w.:-]{0,60} (?:rank=\d+ )?pid=\d"
)
LAUNCHED = 40  # lines of such processes: what was said before them did not keep a script from starting them
# shells, and what they start for a moment: a script goes on behind their errors
_OF_A_SHELL = re.compile(
    r"^(?:\S{1,120}: )?(?:line )?\d+: \S+: (?:command )?not found|^\S{1,120}: line \d+: |"
    r"^(?:/\S{1,40}/)?(?:bash|sh|dash|zsh|cat|ls|cp|mv|rm|mkdir|rmdir|chmod|chown|source|cd|head|tail|grep|find|ln|touch|tar|awk|"
    r"sed|tee|nvidia-smi|module|conda|git|kubectl|wandb): |^ERROR: Unable to locate a modulefile|"
    r"^error: (?:the path \"|resource\(s\) were)|slurmstepd: error: couldn.t chdir"
)
STRAY = 2  # signs of work that may follow what ends a job


def level_of(line: str) -> Severity | None:
    """Severity that the program itself gives a line: of information NOTE, of a warning WARNING; None of others."""
    found = _SAID.search(line[:_HEAD])
    if found is None:
        return None
    kind = found.lastgroup or ""
    if kind != "wandb" and _WORSE.search(line, found.end(), _HEAD):
        return None  # whoever passed it on calls all lines information
    said = found[kind].upper()
    return Severity.WARNING if said[0] in _WARNING and kind != "wandb" else Severity.NOTE


def is_an_error(line: str) -> bool:
    """Return true for a line that is an error by its own words."""
    return _AN_ERROR.search(line) is not None


def goes_on(line: str) -> bool:
    """Return true for a line that says how the program goes on."""
    return _GOES_ON.search(line) is not None


def is_survived(line: str) -> bool:
    """Return true for a line that says how the program goes on, and that it calls a warning or no error.

    One that ends in what is passed over is none either.
    """
    if _PASSED_OVER.search(line) is not None:
        return True
    return goes_on(line) and (level_of(line) is not None or not is_an_error(line))


def is_of_a_shell(line: str) -> bool:
    """Return true for an error of a shell, or of a command that a script starts and goes on behind."""
    return _OF_A_SHELL.search(line) is not None


class Work:
    """How far a job was seen to work."""

    def __init__(self) -> None:
        self._first_task = self._tasks = 0  # the first line of processes that a launcher started, and how many
        self._done = 0  # the last line by which it had come up
        self._signs = [0] * (STRAY + 1)  # the last lines of its work

    def line(self, raw: bytes, text: str, number: int) -> None:
        """Take a line of a file, by its number."""
        if self._tasks < LAUNCHED and _TASK.match(raw):
            self._tasks += 1
            self._first_task = self._first_task or number
        if not any(map(raw.__contains__, _SIGNS)):
            return
        if _DONE.search(text):
            self._done = number
        elif _WORK.search(text):
            self._signs = [*self._signs[1:], number]

    @property
    def launched(self) -> int:
        """The first line of the processes that a launcher started; 0 where it started none that are told apart."""
        return self._first_task if self._tasks >= LAUNCHED else 0

    @property
    def latest(self) -> int:
        """The last line that showed work; 0 where none did."""
        return max(self._done, self._signs[-1])

    @property
    def until(self) -> int:
        """The last line up to which nothing ended the job; 0 where it was not seen to work."""
        return max(self._done, self._signs[0])
