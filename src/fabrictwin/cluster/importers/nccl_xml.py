"""Read NCCL's topology XML into elements with their lines: what NCCL_TOPO_DUMP_FILE writes, NCCL_TOPO_FILE reads.

The parser takes elements and attributes only. A document type, and so any entity, is refused, and size, depth and
number of elements are bounded, so that no file can make it work for long. What the elements mean is
`nccl_host`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.textfile import read_bytes
from fabrictwin.base.whole_numbers import whole_or_none

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_ELEMENTS = 20_000
MAX_ATTRIBUTES = 32
NAMES = ("system", "cpu", "pci", "gpu", "nvlink", "c2c", "nic", "net", "pcilink", "gin", "rma")


@dataclass
class Element:
    """One element, where it stood, and what stands in it."""

    name: str
    attributes: dict[str, str]
    line: int
    file: str
    children: list[Element] = field(default_factory=list)

    def all(self, name: str) -> Iterator[Element]:
        """Its children of a name."""
        return (child for child in self.children if child.name == name)

    def text(self, key: str, default: str | None = None) -> str:
        """An attribute. Raises ConfigError where it is missing and has no default."""
        value = self.attributes.get(key, default)
        if value is None:
            self.refuse(key, "missing, expected a value")
        return value

    def whole(self, key: str, default: int | None = None, *, most: int = 2**31) -> int:
        """A whole number from 0, in decimal. Raises ConfigError."""
        text = self.attributes.get(key)
        if text is None and default is not None:
            return default
        text = self.text(key).strip()
        number = whole_or_none(text, most=most)
        if number is None:
            self.refuse(key, f"got {quoted(text, 42)}, expected a whole number up to {most}")
        return number

    def refuse(self, key: str, message: str) -> NoReturn:
        raise ConfigError(message, file=self.file, line=self.line, key=f"{self.name} {key}".strip())


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._document_type
        self.parser.EntityDeclHandler = self._document_type
        self.stack: list[Element] = []
        self.root: Element | None = None
        self.elements = 0

    def _refuse(self, message: str) -> NoReturn:
        raise ConfigError(message, file=self.file, line=self.parser.CurrentLineNumber)

    def _document_type(self, *_: object) -> None:
        self._refuse("got a document type or an entity, expected elements only")

    def _text(self, data: str) -> None:
        if data.strip():
            self._refuse(f"got the text {quoted(data.strip(), 42)}, expected elements only")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if name not in NAMES:
            self._refuse(f"got <{name[:40]}>, expected one of {', '.join(NAMES)}{did_you_mean(name[:40], NAMES)}")
        if (name == "system") != (not self.stack):
            self._refuse(
                f"got <{name}> {'inside another' if self.stack else 'first'}, expected <system> around all"
            )
        if len(self.stack) >= MAX_DEPTH:
            self._refuse(f"got elements more than {MAX_DEPTH} deep")
        if self.elements > MAX_ELEMENTS:
            self._refuse(f"got more than {MAX_ELEMENTS} elements")
        if len(attributes) > MAX_ATTRIBUTES:
            self._refuse(f"got {len(attributes)} attributes, expected at most {MAX_ATTRIBUTES}")
        element = Element(name, attributes, self.parser.CurrentLineNumber, self.file)
        if self.stack:
            self.stack[-1].children.append(element)
        else:
            self.root = element
        self.stack.append(element)

    def _end(self, _name: str) -> None:
        self.stack.pop()


def parse_topology(data: bytes, file: str) -> Element:
    """The `<system>` of a file's content. Raises ConfigError with file and line."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"got {len(data)} bytes, expected at most {MAX_BYTES}", file=file)
    reader = _Reader(file)
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        if error.code in (expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS], 5):
            what += ": the file was cut short?"
        raise ConfigError(f"expected XML: {what}", file=file, line=error.lineno) from None
    except (LookupError, ValueError) as error:  # an encoding that Python does not have
        raise ConfigError(f"expected XML: {error}", file=file, line=1) from None
    assert reader.root is not None, "a document without an element is an error of the parser"
    return reader.root


def read_topology(path: Path) -> Element:
    """The `<system>` of a file. Raises ConfigError."""
    return parse_topology(read_bytes(path, MAX_BYTES), str(path))
