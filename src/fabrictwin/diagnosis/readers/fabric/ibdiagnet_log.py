"""ibdiagnet's log: what each stage found, and the table of stages at its end (ibutils2).

Its lines of trouble begin with -E- and -W-; they are looked up in the table of mechanisms, as any message is.
That a stage `finished with errors` says no more than the lines before it.
"""

from __future__ import annotations

import re

from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"^\s*-[IWE]- (?:Stage\s+Warnings|Discovering|Discovery|Lids? Check|Links? |Link: |Ports? [Cc]ounters|lid=0x|"
    r"Subnet Manager|Speed / Width|FW |Fabric Discover|Nodes Information|Partition Keys|Load Plugins|"
    r"\S+ - \"\w+\" increased)|^\s*-[WE]- .*increased during the run|^\s*IBDIAGNET\b|"
    r"^Running version:\s+\"IBDIAGNET"
)
_STAGE = re.compile(r"-I- (\S.*?)\s{2,}(\d{1,9})\s+(\d{1,9})(?:\s|$)")


class DiagnetLog(LineReader):
    """Reads ibdiagnet's log."""

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of the tool's."""
        bare = text.strip()
        self.talks = bare.startswith(("-E-", "-W-"))  # what it informs of is no trouble, whatever its words
        if self.talks and not bare.endswith(("finished with errors", "finished with warnings")):
            self.sink.add("ibdiagnet.line", (bare[1], bare[4:300]))
        stage = _STAGE.match(bare)
        if stage is not None:
            self.sink.add("ibdiagnet.stage", (stage[1][:60], int(stage[2]), int(stage[3])))
        return not bare or bool(re.match(r"-[IWE]- |-+$|Summary|Fabric Summary|\S[\w ]*: \d+$", bare))

    def close(self) -> None:
        """Say that a fabric was looked at."""
        self.sink.add("ibdiagnet.read", True)
