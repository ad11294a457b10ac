"""Each line of a file to the reader that knows it, and what is no row of a table to who looks for trouble."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from io import BytesIO
from typing import IO, TYPE_CHECKING

from fabrictwin.diagnosis.evidence import Fact, Sink
from fabrictwin.diagnosis.literals import alternatives, needed
from fabrictwin.diagnosis.readers import json_lines
from fabrictwin.diagnosis.readers.decisive_lines import LEVELS, NOTHING, DecisiveLines, Message, is_request
from fabrictwin.diagnosis.readers.host.kernel_log import MARKS, KernelLog
from fabrictwin.diagnosis.readers.job.benchmarks import ROW_BEGINS, NcclTests
from fabrictwin.diagnosis.readers.job.launchers import Launchers
from fabrictwin.diagnosis.readers.job.nccl_log import NcclLog
from fabrictwin.diagnosis.readers.job.run_starts import RunStarts
from fabrictwin.diagnosis.readers.job.verbs_programs import NAME as VERBS_PROGRAMS
from fabrictwin.diagnosis.readers.job.verbs_programs import VerbsPrograms
from fabrictwin.diagnosis.readers.line_prefixes import Prefixes
from fabrictwin.diagnosis.readers.line_reader import LineReader
from fabrictwin.diagnosis.readers.line_shapes import LineShapes, pattern_sources
from fabrictwin.diagnosis.readers.registry import FAMILIES, Family, family_of

if TYPE_CHECKING:
    from fabrictwin.diagnosis.readers.line_blocks import Block, Texts

LONGEST_LINE = 64 << 10
LONGEST_SAMPLE = 4 << 10
MOST_SHAPES = 50_000
MOST_QUIET = 200_000  # keys of lines that are remembered
LARGE = 4 << 20  # bytes of a file after which lines are told apart block by block
# bits of what a line holds: a text without which no format begins and no kernel's log tells anything, and one
# without which no message is known
FORMAT, MESSAGE = 1, 2
# what stands in lines of NCCL, and in those that begin a format whose pattern needs no one text; of a GID and of a
# kernel's time the scan looks for the digits
_BEGINNINGS = (
    "#", '"s-', '"h-', '"r-', "rx_", "tx_", "np_", "rp_", "roce_", "rnr_nak_", "out_of_", "packet_seq_",
    "local_ack_", "link_down_", ".0 ", ".1 ", ".2 ", ".3 ", ".4 ", ".5 ", ".6 ", ".7 ", " nccl ", "nccl version",
)  # fmt: skip
# what stands in messages whose patterns need no one text
_WORDS = (
    "[e",
    "[w",
    "e0",
    "e1",
    "w0",
    "w1",
    "ucx",
    "uct",
    "ucc",
    "ucp",
    "mmio",
    "free vf",
    "no vf",
    "not enough vf",
)


# of bars of progress, whose states stand in one line, an old end of line behind each
_OF_PROGRESS = ("it/s", "s/it", "%|", "it [")


@cache
def _shapes() -> LineShapes:
    """Return shapes of lines, which are the same in all files: what a word comes to is looked up once."""
    return LineShapes((*pattern_sources(), *LEVELS, *MARKS))


@cache
def _beginnings() -> dict[str, Family | None]:
    """Return shapes of lines that begin no format, or one whose reader takes any line, of all files."""
    return {}


class Router:
    """Gives each line to the reader that knows it."""

    def __init__(self, sink: Sink, shapes: LineShapes) -> None:
        self.sink = sink
        self.nccl = NcclLog(sink)
        self.shapes = shapes
        self.known: dict[str, LineReader] = {}
        self.active: LineReader | None = None
        self.has_nccl = False
        self.may_begin = True  # the line at hand a format, as far as its texts tell
        self._beginnings = _beginnings()

    def route(self, text: str) -> bool:
        """Give the line to the reader at hand, or to the one that it begins; true where a table has it."""
        active = self.active
        family = None
        if active is not None and not _is_weak(active):
            if active.line(text):
                return not active.talks
            family = self._family(text)
        else:
            family = self._family(text)
            if family is None:
                if active is not None and not active.line(text):
                    self.active = None
                return False
        if family is None:
            if text.strip():
                self.active = None
            return False
        if family.name not in self.known:
            self.known[family.name] = family.make(self.sink)
        self.active = self.known[family.name]
        return self.active.line(text) and not _is_weak(self.active) and not self.active.talks

    def _family(self, text: str) -> Family | None:
        """The family whose beginning a line is; asked once for lines that differ in numbers and names alone."""
        if not self.may_begin:
            return None
        shape, known = self.shapes.of(text), self._beginnings
        if shape in known:
            return known[shape]
        family = family_of(text)
        if family is None or family.name in WEAK:
            if len(known) >= MOST_SHAPES:
                known.clear()
            known[shape] = family
        return family

    @property
    def in_kernel_log(self) -> bool:
        """Return true where the last line was of a kernel's log."""
        return isinstance(self.active, KernelLog)

    def close(self) -> tuple[str, ...]:
        """End all readers; the families that were found."""
        if self.has_nccl:
            self.nccl.close()
        for reader in self.known.values():
            reader.close()
        return (("nccl-log",) if self.has_nccl else ()) + tuple(self.known)


# readers that take any line: another family's beginning goes before them
WEAK = frozenset(("kernel-log", "fabric-manager", "launcher", VERBS_PROGRAMS))


def _is_weak(reader: LineReader) -> bool:
    """Return true for readers that take any line: another family's beginning goes before them."""
    return isinstance(reader, KernelLog | Launchers | VerbsPrograms)


@cache
def _texts() -> Texts:
    """Return the texts without which no format begins and no message is known."""
    from fabrictwin.diagnosis.readers.line_blocks import texts_of

    formats = {text for family in FAMILIES for one in alternatives(family.opens) for text in needed(one)}
    messages = {text for one in (*pattern_sources(), *LEVELS) for text in needed(one)}
    return texts_of({FORMAT: {*formats, *MARKS, *_BEGINNINGS}, MESSAGE: {*messages, *_WORDS}})


class Repeated:
    """What a line comes to, and every other that says the same: facts and a message, counted once more."""

    def __init__(self, facts: Sequence[Fact], message: Message) -> None:
        # of facts no more than one for each way in which a reader adds it
        self.facts, self.message = tuple(facts), message

    def again(self) -> None:
        """Count it once more."""
        for fact in self.facts:
            fact.count += 1
        self.message.again()


class FileLines:
    """Reads the lines of one file, one after the other."""

    def __init__(self, head: Sequence[str], sink: Sink) -> None:
        """Take the file's beginning, by which its prefixes are told."""
        self.sink = sink
        self.shapes = _shapes()
        self._packed = json_lines.recognises("\n".join(head).encode("utf-8", "replace"))
        if self._packed:
            head = [json_lines.unpacked(one.encode("utf-8", "replace")).decode("utf-8", "replace") for one in head]
        self.prefixes = Prefixes(head)
        self.router = Router(sink, self.shapes)
        self.decisive = DecisiveLines(sink, self.shapes)
        self.starts = RunStarts()

    def take_all(self, lines: Iterable[bytes]) -> None:
        """Take lines, each by itself."""
        for raw in lines:
            self.sink.number += 1
            self.take(raw)

    def take(self, raw: bytes) -> Message | None:
        """Take a line; the message that it is one of, None where a reader of tables has it."""
        if self._packed and raw[:1] == b"{":
            lines = json_lines.unpacked(raw).rstrip(b"\n").split(b"\n")
            found = [self._take(one) for one in lines]
            return found[0] if len(found) == 1 else None
        return self._take(raw)

    def _take(self, raw: bytes) -> Message | None:
        sink, router = self.sink, self.router
        if b" NCCL " in raw or raw.startswith(b"NCCL ") or b"NCCL version" in raw:
            text = raw.decode("utf-8", "replace")
            sink.text = text
            if router.nccl.line(text):
                router.has_nccl = True
                broken = ROW_BEGINS.match(text)
                table = router.known.get("nccl-tests")
                if broken is not None and isinstance(table, NcclTests):
                    table.half(broken[0])
                return None
        if is_request(raw):
            return None
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        if "\r" in text and any(map(text.__contains__, _OF_PROGRESS)):
            text = text.rpartition("\r")[2]  # what a terminal shows in the end
        text = self.prefixes.strip(text)
        if not text.strip():
            return None
        sink.text = text
        self.starts.line(raw, text, sink.number, self.decisive.work.latest)
        if router.route(text):
            self.decisive.work.line(raw, text, sink.number)  # a test that came to its end worked
            return None
        return self.decisive.line(raw, text, kernel=router.in_kernel_log)

    def take_stream(self, stream: IO[bytes]) -> None:
        """Take all lines of a stream: of a large one block by block, so that most lines cost little."""
        left = LARGE
        unsettled: dict[int, bytes] = {}  # of each message a line, by its identity
        for raw in iter(lambda: stream.readline(LONGEST_LINE), b""):
            self.sink.number += 1
            message = self.take(raw)
            if message is not None and not message.is_settled and len(raw) < LONGEST_SAMPLE:
                unsettled[id(message)] = raw
            left -= len(raw)
            if left <= 0:
                _Blocks(self).take(stream, unsettled.values())
                return

    def close(self) -> tuple[str, ...]:
        """End all readers; the families that were found."""
        families = self.router.close()
        runs = list(self.starts.runs(self.sink.number, self.decisive.work.latest))
        for run in runs:
            self.sink.add("job.run", run)
        return (*families, "messages") if self.decisive.close([begin for begin, _, _ in runs]) else families


class _Blocks:
    """Takes the lines of a large stream: those alone that can begin a format, or say something new.

    Between tables, and in a kernel's log, a line leaves nothing behind but a count where one of its shape stood
    before and its message is settled, and nothing at all where it holds no text that matters. While a table is
    read every line is taken.
    """

    def __init__(self, lines: FileLines) -> None:
        self.lines = lines
        self._between: dict[int, Message] = {}  # by keys of shapes
        self._in_kernel_log: dict[int, Message] = {}
        self._repeated: dict[int, Repeated] = {}  # of a kernel's log, by keys of what lines say
        self._unsettled: set[int] = set()  # keys of shapes whose lines are asked whom they are about

    def take(self, stream: IO[bytes], unsettled: Iterable[bytes]) -> None:
        """Take all lines that are left of a stream; `unsettled` are lines whose like are still to be asked."""
        from fabrictwin.diagnosis.readers.line_blocks import blocks  # compiled: not for small files

        texts = _texts()
        vocabulary = self.lines.shapes.vocabulary
        samples = BytesIO(b"".join(unsettled))
        for block in blocks(samples.read, vocabulary, texts, digits_mean=FORMAT, longest=LONGEST_LINE):
            self._unsettled.update(shape for shape, told in zip(block.shapes, block.told, strict=True) if told)
        for block in blocks(stream.read, vocabulary, texts, digits_mean=FORMAT, longest=LONGEST_LINE):
            self._take_block(block)

    def _take_block(self, block: Block) -> None:
        sink, decisive, quiet = self.lines.sink, self.lines.decisive, self._quiet()
        repeated, begin, first = self._repeated, 0, sink.number + 1
        rows = zip(block.ends, block.told, block.shapes, block.messages, strict=True)
        for number, (end, told, shape, message) in enumerate(rows, first):
            if quiet is None:
                known: Message | Repeated | None = None
            elif not told:
                known = NOTHING
            else:
                known = quiet.get(shape)
                if known is None and quiet is not self._between:
                    known = repeated.get(message)
                if known is None and not told & FORMAT and decisive.is_full and shape not in self._unsettled:
                    known = NOTHING
            if known is None:
                sink.number = number
                self.lines.router.may_begin = bool(told & FORMAT) or quiet is None
                self._take_line(block.data[begin:end], shape, message)
                quiet = self._quiet()
            elif known is not NOTHING:
                known.again()
            begin = end
        sink.number = first + len(block.ends) - 1

    def _take_line(self, raw: bytes, shape: int, key: int) -> None:
        """Take a line, and remember what others of its shape, or those that say the same, come to."""
        lines, touched = self.lines, self.lines.sink.evidence.touched
        before = lines.router.active
        touched.clear()
        message = lines.take(raw)
        if message is None or lines.router.active is not before:
            return
        if not message.is_settled:
            if len(self._unsettled) < MOST_QUIET:
                self._unsettled.add(shape)
            return
        if before is None:
            if len(self._between) < MOST_QUIET:
                self._between[shape] = message
        elif isinstance(before, KernelLog):
            if before.is_idle and len(self._in_kernel_log) < MOST_QUIET:
                self._in_kernel_log[shape] = message
            elif before.is_repeatable and len(self._repeated) < MOST_QUIET:
                self._repeated[key] = Repeated(touched, message)

    def _quiet(self) -> dict[int, Message] | None:
        """Return messages by their keys where lines may be passed over; None where a table is read."""
        active = self.lines.router.active
        if active is None:
            return self._between
        return self._in_kernel_log if isinstance(active, KernelLog) else None
