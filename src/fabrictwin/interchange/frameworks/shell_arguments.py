"""Arguments that a shell script gives its program: assignments, arrays and tests read, nothing run.

Understood are `NAME=value`, `export`, `NAME=( ... )`, `+=`, `${NAME}`, `${NAME:-default}`, `${NAME[@]}`, `$(( ))`
of plain arithmetic, and `if` with tests of words and numbers. What only a running shell knows (other commands'
output, the environment, files) is empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.whole_numbers import whole_or_none

MOST_WORDS = 100_000
MOST_CHARACTERS = 1 << 22
_NAME = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)(\+?)=")
_VARIABLE = re.compile(
    r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?[-=]((?:[^{}]|\$\{[^{}]*\})*))?\}|\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)|(\w+))"
)


@record
class Word:
    """A word of a command, and the line on which it was written."""

    text: str
    line: int


@dataclass
class _Statement:
    parts: list[tuple[str, int]] = field(default_factory=list)  # words as written, quotes kept


@dataclass
class _Shell:
    file: str | None
    variables: dict[str, list[Word]] = field(default_factory=dict)

    def expand(self, text: str, line: int, depth: int = 0) -> list[Word]:
        """The words of a text with its variables in place. Raises ConfigError where they do not end."""
        if depth > 16:
            raise ConfigError("got variables that name each other without end", file=self.file, line=line)
        words: list[Word] = []
        glue = False  # the next piece belongs to the last word
        at = 0
        for match in _VARIABLE.finditer(text):
            glue = self._add(words, [Word(text[at : match.start()], line)], glue)
            inner = self._value(match, line, depth)
            spaced = [Word(piece, one.line) for one in inner for piece in one.text.split()]
            if spaced:
                glue = self._add(words, spaced, glue, whole=True)
            at = match.end()
        self._add(words, [Word(text[at:], line)], glue)
        if len(words) > MOST_WORDS or sum(len(word.text) for word in words) > MOST_CHARACTERS:
            raise ConfigError("got variables that grow without end", file=self.file, line=line)
        return words

    @staticmethod
    def _add(words: list[Word], more: list[Word], glue: bool, *, whole: bool = False) -> bool:
        for i, one in enumerate(more):
            pieces = [one.text] if whole else one.text.split()
            joined = glue and i == 0 and words and pieces and not one.text[:1].isspace()
            for j, piece in enumerate(pieces):
                if joined and j == 0:
                    words[-1] = Word(words[-1].text + piece, words[-1].line)
                else:
                    words.append(Word(piece, one.line))
        last = more[-1].text
        return (glue and not last) or bool(last and not last[-1].isspace())

    def _value(self, match: re.Match[str], line: int, depth: int) -> list[Word]:
        braced, default, sum_, plain = match.groups()
        if sum_ is not None:
            text = re.sub(r"(?<![\w$])([A-Za-z_]\w*)", r"$\1", sum_)
            return [Word(_arithmetic(" ".join(w.text for w in self.expand(text, line, depth + 1))), line)]
        found = self.variables.get(braced or plain, [])
        if not found and default:
            return self.expand(default.strip("\"'"), line, depth + 1)
        return found


def _arithmetic(text: str) -> str:
    """A sum or product of whole numbers, from left to right as far as it is one; empty otherwise."""
    tokens = re.findall(r"\d{1,18}|[-+*/]", text)
    if "".join(tokens) != re.sub(r"\s", "", text) or len(tokens) > 64 or not tokens:
        return ""
    total, terms, sign, times = 0, None, 1, "*"
    for token in tokens:
        if token.isdigit():
            value = int(token)
            if terms is None:
                terms = value
            elif times == "/":
                if value == 0:
                    return ""
                terms //= value
            else:
                terms *= value
        elif token in "*/":
            times = token
        else:
            total, terms, sign = total + sign * (terms or 0), None, 1 if token == "+" else -1
    answer = total + sign * (terms or 0)
    return str(answer) if abs(answer) < 10**18 else ""


def program_arguments(text: str, file: str | None) -> list[Word]:
    """Words of the command with the most options among a script's, or of a file that holds options alone.

    Raises ConfigError.
    """
    shell = _Shell(file)
    best: list[Word] = []
    loose: list[Word] = []
    taken: list[bool | None] = []  # of each `if` around: this branch is run, or None where one before it was
    for statement in _statements(text, file):
        first, line = statement.parts[0]
        if first == "case":
            raise ConfigError("got case, expected plain assignments or if", file=file, line=line)
        if first in ("if", "elif", "else", "fi"):
            _branch(shell, statement, taken)
            continue
        if first in ("then", "do", "done", "{", "}", "echo", "mkdir", "set", "exit", "cd"):
            continue
        if not all(taken):
            continue
        named = _NAME.match(" ".join(part for part, _ in statement.parts[:2]))
        if named:
            _assign(shell, statement, named)
            continue
        words = [w for part, at in statement.parts for w in shell.expand(_unquoted(part), at)]
        if first.startswith("-"):
            loose += words
        elif _options(words) > _options(best):
            best = words
    return best if _options(best) > _options(loose) else loose


def _options(words: list[Word]) -> int:
    return sum(word.text.startswith("--") for word in words)


def _assign(shell: _Shell, statement: _Statement, named: re.Match[str]) -> None:
    name, more = named[1], named[2]
    parts = statement.parts[1:] if statement.parts[0][0] == "export" else statement.parts
    first = parts[0][0].split("=", 1)[1]
    array = first.startswith("(") and not first.startswith("((")
    given = [(first, parts[0][1]), *(parts[1:] if array else [])]
    words: list[Word] = []
    for i, (part, line) in enumerate(given):
        inner = part.removeprefix("(") if array and i == 0 else part
        if array and i == len(given) - 1:
            inner = inner.removesuffix(")")
        words += shell.expand(_unquoted(inner), line) if not _single(inner) else [Word(inner[1:-1], line)]
    shell.variables[name] = [*shell.variables.get(name, []), *words] if more else words
    if len(shell.variables[name]) > MOST_WORDS:
        raise ConfigError(f"got more than {MOST_WORDS} words", file=shell.file, line=parts[0][1], key=name)


def _single(part: str) -> bool:
    return len(part) > 1 and part[0] == part[-1] == "'"


def _unquoted(part: str) -> str:
    return part.replace('"', "").replace("'", "").replace("\\\n", " ").replace("\\", "")


def _branch(shell: _Shell, statement: _Statement, taken: list[bool | None]) -> None:
    first = statement.parts[0][0]
    if first == "if":
        taken.append(_test(shell, statement))
    elif not taken:
        return
    elif first == "fi":
        taken.pop()
    elif taken[-1] is not False:
        taken[-1] = None
    else:
        taken[-1] = first == "else" or _test(shell, statement)


def _test(shell: _Shell, statement: _Statement) -> bool:
    """The answer of `[ ... ]`, its parts joined by && and ||; False for what only a running shell knows."""
    answers: list[bool] = [True]
    joined = "&&"
    clause: list[str] = []
    for part, line in [*statement.parts[1:], ("&&", 0)]:
        if part not in ("&&", "||", "-a", "-o"):
            if part not in ("[", "]", "[[", "]]"):
                words = shell.expand(_unquoted(part), line)
                clause.append(" ".join(word.text for word in words))
            continue
        answer = _clause(clause)
        answers.append((answers[-1] and answer) if joined in ("&&", "-a") else (answers[-1] or answer))
        joined, clause = part, []
    return answers[-1]


def _clause(clause: list[str]) -> bool:
    if clause[:1] == ["!"]:
        return clause[1:2] not in (["-f"], ["-d"], ["-e"]) and not _clause(clause[1:])
    if len(clause) == 2:
        return {"-z": not clause[1], "-n": bool(clause[1])}.get(clause[0], False)
    if len(clause) != 3:
        return False
    left, sign, right = clause
    if sign in ("=", "==", "!="):
        return (left == right) == (sign != "!=")
    one, two = whole_or_none(left), whole_or_none(right)
    if one is None or two is None:
        return False
    known = {"-eq": one == two, "-ne": one != two, "-gt": one > two, "-lt": one < two}
    return {**known, "-ge": one >= two, "-le": one <= two}.get(sign, False)


@dataclass
class _Scanner:
    """Splits a script into statements: quotes, comments, continued lines, arrays, and what $( and ${ enclose."""

    file: str | None
    found: list[_Statement] = field(default_factory=list)
    now: _Statement = field(default_factory=_Statement)
    word: str = ""
    began: int = 1
    line: int = 1
    quote: str = ""
    open_lines: list[tuple[str, int]] = field(default_factory=list)  # what is open, and since which line

    def end_word(self) -> None:
        if self.word:
            self.now.parts.append((self.word, self.began))
            self.word = ""

    def end_statement(self) -> None:
        self.end_word()
        if self.now.parts:
            self.found.append(self.now)
            self.now = _Statement()

    def add(self, char: str) -> None:
        if not self.word:
            self.began = self.line
        self.word += char

    def take(self, char: str) -> None:
        """Take a character that no quote and no backslash holds."""
        inner = self.open_lines[-1][0] if self.open_lines else ""
        before = self.word[-1:]
        if char in "({" and (inner in ("$(", "${") or before in ("$", "=")):
            self.open_lines.append(("(" if before == "=" and not inner else f"${char}", self.line))
            self.add(char)
        elif char in ")}" and inner:
            self.open_lines.pop()
            self.add(char)
        elif inner in ("$(", "${"):
            self.add(char)
        elif char.isspace() or (char == ";" and not inner):
            self.end_word()
            if char in "\n;" and not inner:
                self.end_statement()
        else:
            self.add(char)


def _statements(text: str, file: str | None) -> list[_Statement]:
    """Statements with their words. Raises ConfigError for a quote or bracket that is not closed."""
    scan = _Scanner(file)
    at, quoted_at = 0, 1
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text) and scan.quote != "'":
            at += 1
            if text[at] != "\n":
                scan.add(char + text[at])
            elif scan.quote:
                scan.add(" ")
            else:
                scan.end_word()
        elif scan.quote:
            scan.add(char)
            scan.quote = "" if char == scan.quote else scan.quote
        elif char in "\"'":
            scan.add(char)
            scan.quote, quoted_at = char, scan.line
        elif char == "#" and not scan.word:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        else:
            scan.take(char)
        scan.line += at < len(text) and text[at] == "\n"
        at += 1
    if scan.quote:
        raise ConfigError(f"got {scan.quote}, which nothing closes", file=file, line=quoted_at)
    if scan.open_lines:
        raise ConfigError("got a bracket that nothing closes", file=file, line=scan.open_lines[-1][1])
    scan.end_statement()
    return scan.found
