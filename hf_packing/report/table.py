"""A plain text table and its percentages: what reports, the command line and the recipes print."""

from __future__ import annotations

from collections.abc import Sequence


__all__ = ["percent", "text_table"]


def percent(share: float) -> str:
    """A share with one decimal, never rounded up to 100 % or down to 0 %.

    Example:

        >>> percent(0.640625), percent(0.99996), percent(0.00004), percent(1.0)
        ('64.1 %', '>99.9 %', '<0.1 %', '100.0 %')
    """
    if 0.9995 <= share < 1:
        return ">99.9 %"
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %"


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
