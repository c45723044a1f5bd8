"""A plain text table: what reports, the command line and the recipes print."""

from __future__ import annotations

from collections.abc import Sequence


__all__ = ["text_table"]


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, indent: int = 0) -> str:
    """Columns under their headings: the first flush left, the others flush right.

    Args:
        header (`[C]`): one heading a column.
        rows (`[R][C]`): cells; integers get thousands separators, everything else its `str`.
        indent (`int`, *optional*, defaults to `0`): spaces before every line.

    Example:

        >>> print(text_table(["layout", "slots"], [["padded", 8192], ["packed", 4096]]))
        layout  slots
        ------  -----
        padded  8,192
        packed  4,096
    """
    cells = [[f"{cell:,}" if type(cell) is int else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells)]
    rule = ["-" * width for width in widths]
    lines = []
    for line in (list(header), rule, *cells):
        first = line[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))
        lines.append((" " * indent + "  ".join((first, *rest))).rstrip())
    return "\n".join(lines)
