"""Lines of any text that tell of trouble: by the table of mechanisms, and, where it has nothing, as they stand.

Runs over every line of every file, of formats that are known or not. A line is looked at when it holds a word of
trouble; what repeats but for numbers is looked at once. Rows of tables and counters are left to their readers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.diagnosis.literals import Guarded
from fabrictwin.diagnosis.mechanisms.table import HARMLESS, mechanism_of
from fabrictwin.diagnosis.readers.line_prefixes import without_colours
from fabrictwin.diagnosis.readers.line_shapes import LineShapes
from fabrictwin.diagnosis.readers.log_levels import Work, is_of_a_shell

# of lower-case bytes: whatever a pattern of the table can stand beside
_TROUBLE = (
    b"rror", b"fail", b"fault", b"warn", b"xception", b"traceback", b"fatal", b"abort", b"cannot", b"can't",
    b"could", b"unable", b"unavail", b"not ", b"no ", b"denied", b"refused", b"timed out", b"timeout",
    b"exceed", b"unhandled", b"mismatch", b"invalid", b"kill", b"sig", b"dump", b"lost", b"insufficient",
    b"limited by", b"unreach", b"unknown", b"closed", b"broken", b"reset", b"does not", b"illegal", b"out of ",
    b"busy", b"missing", b"incompat", b"unexpected", b"critical", b"duplicate", b"already", b"must be",
    b"expected", b"upgrade", b"update", b"require", b"without", b"assert", b"panic", b"event", b"full",
    b"throttl", b"slowdown", b"down", b"stall", b"lockup", b"cancel", b"evict", b"oom", b"err",
    b"corrupt", b"violation", b"overflow", b"deadlock", b"wrong", b"bad ", b"terminat", b"crash", b"disab",
    b"incorrect", b"non-", b"undefined", b"unsupported", b"only ", b"too ", b"inactive", b"unbound", b"lower than",
    b"storm", b"stuck", b"replayed", b"rewound", b"less than", b"more than", b"greater than", b"larger than",
    b"crit ", b"backtrace", b"hang", b"hung", b"unset", b"restart", b"drain", b"reject", b"violat",
    b" low ", b"loss", b"drop", b"skip", b"differ", b"not at max", b" bug", b"oops",
    b"unrecogni", b"must specify", b"found nan", b"unimplemented", b"unauth", b"stopiteration", b"status=",
    b"n't ", b"times out", b"exclu", b"return value", b"exit code", b"exit_code", b"exitcode", b" dead", b"died",
    b"exhaust", b"expire", b"preempt", b"alarm", b"threshold reach",
)  # fmt: skip
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b\d+\b")
_FATAL = Guarded(
    r"^\W*(?:\[\w+\]:? ?)?(?:\w+\.)*\w*(?:Error|Exception|KeyboardInterrupt)\b(?:: |$)|terminate called|what\(\):|"
    r"\bFATAL\b|\bFatal\b|\bfatal: |\bCRIT(?:ICAL)?\b|\bpanic\b|core dumped|unhandled|\b[Aa]borted\b|NCCL WARN"
)
_ERROR = re.compile(
    r"\bERROR\b|(?<![-\w/.])[Ee]rrors?(?![-\w/])|\berr\b|\w+(?:Error|Exception)\b|\b[Ff]ail(?:ed|ure|s)?\b|\bFAIL(?:ED|URE)?\b|"
    r"\b(?:killed|crashed|died)\b|"
    r"\b(?:[Cc]annot|[Cc]an't|[Cc]ould(?: not|n't)|[Ii]nvalid|[Uu]nable to)\b|"
    r"\b(?:refused|[Dd]enied|timed out|[Nn]ot found|No such)\b|"
    r"\[E\d* |^E\d{4} "
)
_WARN = re.compile(r"\bWARN(?:ING)?\b|\[W\d* |^W\d{4} ")
# rows of tracebacks that are program text, settings, and rows of tables
_CODE = re.compile(
    # variables that somebody prints, unless what stands behind says more of them
    r"^_?[A-Z][A-Z0-9_]+=(?!\d+ \S)(?!\S* (?:is|was|requires?|must|should|cannot|not)\b)|"
    # commands that start a job
    r"^(?:[$#] |time )?(?:[\w./-]*/)?(?:mpirun|mpiexec|srun|torchrun|horovodrun|deepspeed) (?=-)|"
    # rows of a program as IPython numbers them
    r"^-+> ?\d+ |^\s*\d{1,5} {4,}(?:[fr]?[\"']|\w[\w.]*(?:\[\w+\])?\s*[(=])|"
    r"^\s*\d+(?: +\d+)? +(?:#|from|import|raise|return|def|class|if|elif|else|try|except|with|for|self)"
    r"(?: |\b)|"
    r"^\s*(?:File \"|\^|~|raise |return |at |#\d+ |frame #\d+|from \S+ import|def |class |if |elif |except |try:|"
    r"assert |self\.|[\w.]+\([^()]*\),?$|\w+ = |export |\++ |[\w.-]+ *[:=] *(?:true|false|none|null|0|\d+)?$|--)|"
    r"Traceback \(most recent|The above exception was|During handling of"
)
# a logger's head before each row of a traceback, whose body is indented
_LOGGED = re.compile(r"^.{0,100}?\[?[\w/.]+\.py:\d+\](\s*)(.*)")
_HOST = re.compile(r"(?<![\w./-])\[?([A-Za-z][\w.-]{1,62}):\d{1,9}:\d{1,9}\b|@([a-z][\w-]{1,62})\W")
_RANK = re.compile(r"\[(?:rank|default)(\d{1,6})\]|\b[Rr]ank:? ?(\d{1,6})\b|\[\d+,(\d{1,6})\]<")
_ADAPTER = re.compile(
    # what clouds name devices by ends in a number too; functions of the driver do not
    r"\b(mlx\d_(?:\w*\d|bond\w*)|irdma\d+|bnxt_re\d+|rocep\w+|ibp\w+|efa_\d+)\b|"
    r"\bmlx\d_core(?: \w+:)? ((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b"
)
_SECONDS = re.compile(r"(?:^|[\sT\[])(\d\d):(\d\d):(\d\d(?:[.,]\d{1,9})?)")
# what a message goes on to guess or advise is no evidence
_GUESSES = Guarded(
    r"\b(?i:potential|possible|probable) (?:root )?(?:causes?|reasons?)\b|"
    r"\b[Tt]his (?:can|may|might|could) (?:happen|cause|lead|result)\b|"
    r"\b[Ss]ometimes\b.{1,40}? (?:can|may|might|could) (?:fail|hang|crash|report|return)\b|"
    r"\b(?:Solution|Advice|Hint)\b: |[.;] To (?:allow|override|silence|suppress|disable|avoid)\b|"
    r"(?<=[^\s] )if (?:the )?(?:port|it|this|that|another|no|any|your?)\b"
)
# what Python says of errors in what nobody waits for (finalizers, atexit's functions): they end no process
_IGNORED = "Exception ignored in"
_OF_A_GPU = re.compile(r"\b(?:CUDA|HIP|NCCL)\b")
_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Warning|Exit)\b(?:: |$)")
_FRAME = re.compile(r'File "([^"]+", line \d+, in \S+)')
LONGEST_SAID = 400  # of an error, behind which the place that raised it is put
LONGEST_FRAME = 160
_HEAD = re.compile(r"\W?[\w.,-]{1,40}\W{0,2}: ?")
MOST_HEAD = 100  # letters of a line, in which such a row begins
MOST_ROWS = 60  # of a traceback, and of what stands between its rows
# a line that is no error by its own words was survived so many lines before the first that is one, or before the
# end where there is none
QUIET, QUIET_END = 40, 60
NEXT = 3  # lines that say more of an error, of an exception's message or a shell's
_STOPPED = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|CANCELLED")
_HARD = re.compile(
    r"^Traceback \(most recent|\bERROR\b|\[E\d* |^E\d{4} |\berror: |slurmstepd|srun: |[Aa]ssertion .*failed|"
    # what ends a task of the kernel, which goes on without it
    r"\bkernel BUG at|\bBUG: unable to handle|\bOops: |\bInternal error: |\bgeneral protection fault, probably|"
    r"\bUnhandled fault: "
)
# texts of which a line holds one where it matches, or begins with an E
_HARD_TEXTS = (
    "Traceback (", "ERROR", "[E", "error: ", "slurmstepd", "srun: ", "ssertion ", "kernel BUG", "BUG: unable",
    "Oops: ", "Internal error: ", "general protection", "Unhandled fault",
)  # fmt: skip
UNMISTAKABLE = 0.92  # from so sure on a mechanism tells of trouble by itself, without a word of it
MOST_SHAPES, MOST_KEPT = 50_000, 4_000  # kept of each: of causes that are known, and of those that are not
MOST_LOOKED = 40_000  # lines of new shapes, each of which costs a third of a millisecond
LONGEST_LOOKED = 4_000  # of a line; more is data
# of lines of one shape: how many are asked whom they are about, and how many answers are kept
MOST_COMPARED, MOST_SUBJECTS = 1_000, 16
# where a kernel's log is whole, most of what fails there at start is of no device that a job communicates by
_OF_A_JOB = re.compile(
    r"NVRM|nvidia|mlx|infiniband|rdma|bnxt|irdma|efa\b|nvswitch|\bib_|roce|pcie|bond|amdgpu|kfd|habana|"
    r"hardware error|\*ERROR\*|\bUC[XCTP]\b|\bNCCL\b|nvshmem",
    re.IGNORECASE,
)

# patterns that decide how bad a line is which no mechanism knows
LEVELS = tuple(one.pattern for one in (_FATAL, _ERROR, _WARN, _OF_A_JOB))


def is_request(raw: bytes) -> bool:
    """Return true for a line that quotes what a user asked a server: vLLM's and SGLang's logs of requests."""
    asked = b" prompt: " in raw and (b"Received request " in raw or b" details: " in raw)
    return asked or b"obj=GenerateReqInput(" in raw


def has_trouble(lower: bytes) -> bool:
    """Return true for a line, in lower case, that holds a word of trouble."""
    return any(map(lower.__contains__, _TROUBLE))


@dataclass(slots=True)
class _Kept:
    place: Place
    about: Subject
    last: int  # line
    hard: bool  # an error by its own words
    count: int = 1


class Message:
    """Lines of trouble of one shape: what was kept of them, for each host, rank or adapter that they are about."""

    def __init__(self, first: _Kept | None, *, is_hard: bool = False) -> None:
        self.first, self.seen, self.is_hard = first, 1, is_hard
        self.subjects = {first.about} if first is not None else set()

    @property
    def is_settled(self) -> bool:
        """Return true where another line of this shape is counted and no more."""
        return self.first is None or self.seen > MOST_COMPARED or len(self.subjects) >= MOST_SUBJECTS

    def again(self, number: int = 0) -> None:
        """Count one more line of this shape, by its number where it is known."""
        if self.first is not None:
            self.seen += 1
            self.first.count += 1
            self.first.last = max(self.first.last, number)


NOTHING = Message(None)  # lines that say nothing


class DecisiveLines:
    """Keeps lines of trouble of one file."""

    def __init__(self, sink: Sink, shapes: LineShapes) -> None:
        self.sink = sink
        self.shapes = shapes
        self.work = Work()
        self._hard: list[int] = []  # numbers of lines that are errors by their own words, some of many
        self._fatal = 0  # the last line of an exception
        self._is_hard = False  # the line at hand
        self._was_stopped = False  # somebody ended the program, who may have waited for long
        self._asserted = ""  # what the last row of a traceback asserts
        self._frame = self._row = ""  # of a traceback: the last function and the last row of program text
        self._ignored: list[int] = []  # lines of errors that Python ignored and that are still to be named
        self._messages: dict[str, Message] = {}
        self._kept: dict[tuple[str, tuple[str | float, ...], Subject], _Kept] = {}
        self._unknown = self._looked = 0  # of these without a cause; lines of new shapes

    @property
    def is_full(self) -> bool:
        """Return true where no further message is kept."""
        return len(self._kept) - self._unknown >= MOST_KEPT or self._looked >= MOST_LOOKED

    def line(self, raw: bytes, text: str, *, kernel: bool) -> Message:
        """Take a line, and return the message that it is one of; `kernel` where it is of a kernel's log."""
        self.work.line(raw, text, self.sink.number)
        self._follow(text)
        if self._is_ignored(text):
            return NOTHING
        shape = self.shapes.of(text)
        if kernel:
            shape += "\n"  # a message of the kernel, of which less is said
        known = self._messages.get(shape)
        if known is not None:
            if known.is_hard:
                self._hard.append(self.sink.number)
            self._again(known, raw, text, kernel=kernel)
            return known
        self._is_hard = False
        kept = None if self.is_full else self._look(text, raw, kernel=kernel)
        if self._is_hard:
            self._hard.append(self.sink.number)
            self._was_stopped = self._was_stopped or _STOPPED.search(text) is not None
        message = NOTHING if kept is None and not self._is_hard else Message(kept, is_hard=self._is_hard)
        if len(self._messages) < MOST_SHAPES:
            self._messages[shape] = message
        return message

    def _is_quiet_after(self, number: int) -> bool:
        """Return true for a line behind which a program went on for long without an error."""
        if self._was_stopped:
            return False
        at = bisect_right(self._hard, number)
        if at < len(self._hard):
            return self._hard[at] - number > QUIET
        return self.sink.number - number > QUIET_END

    def _went_on_after(self, number: int) -> bool:
        """Return true for a line behind which a later program raised an error, or much else stands."""
        return self._fatal > number + NEXT or self.sink.number - number > QUIET_END

    def _is_ignored(self, text: str) -> bool:
        """Return true for a line of an error that Python ignored: its head, and the row that names it."""
        if _IGNORED in text[:MOST_HEAD]:
            self._ignored.append(self.sink.number)
            return True
        if not self._ignored or not (_RAISED.match(text) or _RAISED.match(text, _behind_head(text))):
            return False
        if _OF_A_GPU.search(text):
            return False  # tells of a GPU that is lost to its process, whoever waits for it
        return self.sink.number - self._ignored.pop(0) <= MOST_ROWS

    def _again(self, known: Message, raw: bytes, text: str, *, kernel: bool) -> None:
        """Take a line whose shape was kept before: one more of it, or the first about another host."""
        is_settled = known.is_settled
        known.again(self.sink.number)
        if is_settled:
            return
        about = _about(without_colours(raw.decode("utf-8", "replace")))
        if about not in known.subjects:
            known.subjects.add(about)
            self._look(text, raw, kernel=kernel)

    def _look(self, text: str, raw: bytes, *, kernel: bool) -> _Kept | None:
        self._looked += 1
        bare, raw = text[:LONGEST_LOOKED].strip(), raw[:LONGEST_LOOKED]
        guesses = _GUESSES.search(bare)
        if guesses is not None:
            bare = bare[: guesses.start()].rstrip()
        if bare.startswith("assert "):
            self._asserted = bare
        elif self._asserted and bare.endswith("AssertionError"):
            bare, self._asserted = f"{bare}: {self._asserted}", ""  # says nothing by itself
        code = _is_code(bare)
        is_trouble = has_trouble(raw.lower())
        hard = self._is_hard = (is_trouble or bare.startswith(("E", "[E"))) and _is_hard(bare)
        if hard and not code and _RAISED.match(_without_head(bare)):
            self._fatal = self.sink.number
        mechanism = None if code else mechanism_of(bare)
        if (self._frame or self._row) and not code and _RAISED.match(_without_head(bare)):
            more = mechanism_of(f"{bare[:LONGEST_SAID]} [at {self._frame} {self._row}]")
            if more is not None and more.cause != HARMLESS and (mechanism is None or more.sure > mechanism.sure):
                mechanism = more
            self._frame = self._row = ""
        if mechanism is not None and not is_trouble and mechanism.sure < UNMISTAKABLE:
            mechanism = None
        stamp = _seconds(raw)
        words = _NUMBER.sub(lambda found: found[0] if len(found[0]) <= 3 else "#", bare)[:300]
        value: tuple[str | float, ...]
        if mechanism is not None:
            if mechanism.cause == HARMLESS:
                return None
            kind, value = "line.known", mechanism.told(words, stamp)
        else:
            if code or not is_trouble or (kernel and not _OF_A_JOB.search(bare)):
                return None
            level = "" if self._unknown >= MOST_KEPT else _level(bare)
            if not level:
                return None
            kind, value = "line.unknown", (level, words, stamp)
        about = _about(without_colours(raw.decode("utf-8", "replace")))
        kept = self._kept.get((kind, value, about))
        if kept is not None:
            kept.count += 1
            kept.last = self.sink.number
            return kept
        self._unknown += kind == "line.unknown"
        # an exception's message goes on behind its first line
        goes_on = self._fatal > 0 and self.sink.number - self._fatal <= NEXT
        kept = self._kept[kind, value, about] = _Kept(self.sink.here(), about, self.sink.number, hard or goes_on)
        return kept

    def _follow(self, text: str) -> None:
        """Remember the last function and the last row of program text of a traceback."""
        if 'File "' in text:
            frame = _FRAME.search(text)
            if frame is not None:
                self._frame, self._row = frame[1][-LONGEST_FRAME:], ""
        elif self._frame and not self._row:
            row = _without_head(text).strip()[:120]
            self._row = "-" if row.startswith(("raise ", "return ")) else row  # what it would have said

    def close(self, begins: Sequence[int] = ()) -> bool:
        """Hand over what was kept; true where there is something. `begins` are the first lines of runs."""
        until = self.work.until
        if until:
            self.sink.add("job.worked", until)
        for (kind, value, _), kept in self._kept.items():
            # a job that works after it went on in spite of it
            past = (
                kept.last < max(until, self.work.launched)
                or (not kept.hard and self._is_quiet_after(kept.last))
                or (is_of_a_shell(kept.place.text) and self._went_on_after(kept.last))
            )
            self.sink.add(kind, (*value, float(past)), kept.about, place=kept.place, count=kept.count)
            if bisect_right(begins, kept.place.line) != bisect_right(begins, kept.last):
                again = Place(kept.place.file, kept.last, kept.place.text)  # in another run
                self.sink.add(kind, (*value, float(past), "again"), kept.about, place=again)
        return bool(self._kept)


def _is_hard(text: str) -> bool:
    """Return true for a line that is an error by its own words: an exception, a fatal one, a launcher's."""
    may_be = text.startswith("E") or any(map(text.__contains__, _HARD_TEXTS))
    return bool(_FATAL.search(text) or (may_be and _HARD.search(text)))


def _behind_head(text: str) -> int:
    """Return where a line goes on behind a rank or name that few lines of its file have."""
    head = _HEAD.match(text)
    return head.end() if head is not None else 0


def _without_head(bare: str) -> str:
    """Return a row of a traceback without a logger's head."""
    logged = _LOGGED.match(bare)
    return bare if logged is None else logged[2]


def _is_code(bare: str) -> bool:
    """Return true for rows of a traceback that are program text, of settings, of tables."""
    logged = _LOGGED.match(bare)
    if logged is not None:
        return len(logged[1]) > 1 or bool(_CODE.search(logged[2]))
    return bool(_CODE.search(bare))


def _level(bare: str) -> str:
    if _FATAL.search(bare):
        return "fatal"
    if _ERROR.search(bare):
        return "error"
    return "warning" if _WARN.search(bare) else ""


def _seconds(raw: bytes) -> float:
    """The time of day that a line begins with, in seconds; -1 where it has none."""
    found = _SECONDS.search(raw[:160].decode("ascii", "replace"))
    return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3].replace(",", ".")) if found else -1.0


def _about(text: str) -> Subject:
    host, rank, adapter = _HOST.search(text), _RANK.search(text), _ADAPTER.search(text)
    number = next((group for group in rank.groups() if group), "-1") if rank else "-1"
    device = (adapter[1] or adapter[2]) if adapter else ""
    return Subject((host[1] or host[2]) if host else "", int(number), device)
