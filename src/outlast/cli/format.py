"""Numbers as people read them: counts, bytes, durations, sparklines. Pure functions on values.

May import: nothing of Outlast.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def count(value: float) -> str:
    """``950``, ``12.3 k``, ``4.1 M``."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size * 0.99995:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """``812 B``, ``2.7 MB``; decimal units."""
    return f"{count(value)}B" if abs(value) >= 999.95 else f"{value:.0f} B"


def duration(seconds: float) -> str:
    """``80 ms``, ``3.4 s``, ``42 s``, ``1 m 34 s``, ``3 h 05 m``, ``2 d 04 h``."""
    if seconds < 0.9995:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_rest = divmod(minutes, 60)
    days, hours_rest = divmod(hours, 24)
    if not minutes:
        return f"{whole} s"
    if not hours:
        return f"{minutes} m {rest:02d} s"
    return f"{days} d {hours_rest:02d} h" if days else f"{hours} h {minutes_rest:02d} m"


def plural(number: int, one: str) -> str:
    """``1 group``, ``3 groups``; thousands are kept apart."""
    return f"{number:,} {one if number == 1 else one + 's'}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as bars between their own minimum and maximum, averaged down to `width`."""
    if not values or width < 1:
        return ""
    shown = _averaged(values, width)
    low, high = min(shown), max(shown)
    span = high - low
    top = len(_BARS) - 1
    if span <= 0:
        return _BARS[top // 2] * len(shown)
    return "".join(_BARS[round((value - low) / span * top)] for value in shown)


def _averaged(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    buckets = [values[a:b] for a, b in itertools.pairwise(edges)]
    return [sum(bucket) / len(bucket) for bucket in buckets]


def table(rows: Sequence[tuple[str, str]], *, indent: int = 2) -> str:
    """Labels and texts in two columns, for plain terminals and pipes."""
    width = max((len(label) for label, _ in rows), default=0)
    lines = []
    for label, text in rows:
        first, *rest = text.split("\n")
        lines.append(f"{'':{indent}}{label:<{width}}  {first}".rstrip())
        lines += [f"{'':{indent + width}}  {line}".rstrip() for line in rest]
    return "\n".join(lines)
