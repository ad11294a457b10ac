"""InfiniBand routers put into what ibnetdiscover printed."""

from __future__ import annotations

import re

GUID, FIRST_LID = 0xEC0D9A0300112200, 400


def with_router(text: str, jacks: list[tuple[str, int]], *, number: int = 0) -> str:
    """The text with one more router, of a port in each jack (switch and port number)."""
    guid, description, rows = GUID + 0x100 * number, f"MF0;rt-{number}:MSB7780/R1", []
    for k, (name, jack) in enumerate(jacks, 1):
        lid = FIRST_LID + 10 * number + k
        head = re.search(rf'Switch\s+\d+ "(S-[0-9a-f]+)"\s+# "(MF0;{name}:[^"]+)"[^\n]* lid (\d+) lmc 0\n', text)
        assert head is not None, name
        end = text.index("\n\n", head.end())
        line = f'\n[{jack}]\t"R-{guid:016x}"[{k}]({guid + k:x})\t\t# "{description}" lid {lid} 4xHDR'
        text = text[:end] + line + text[end:]
        own = f'[{k}]({guid + k:x}) \t"{head[1]}"[{jack}]\t\t# lid {lid} lmc 0'
        rows.append(f'{own} "{head[2]}" lid {head[3]} 4xHDR')
    head_lines = [
        "vendid=0x2c9",
        "devid=0xd2f4",
        f"sysimgguid=0x{guid:x}",
        f"rtguid=0x{guid:x}",
        f'Rt\t{len(jacks)} "R-{guid:016x}"\t\t# "{description}"',
    ]
    return text.rstrip("\n") + "\n\n" + "\n".join([*head_lines, *rows]) + "\n"
