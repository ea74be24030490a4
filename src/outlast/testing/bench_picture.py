"""The goodput comparison as a picture: progress over time, and what was generated again.

Plain SVG, no library. Pure: figures in, text out. May import: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 900, 430
LEFT, RIGHT, TOP, BOTTOM = 64, 560, 76, 372
"""Of the plot with the curves."""
BAR_LEFT, BAR_RIGHT = 700, 840
COLOURS = {
    "undisturbed": "#8a8f98",
    "none": "#c1443c",
    "step": "#d9902f",
    "sibling": "#3b78b5",
    "token": "#2d8a57",
}
LABELS = {
    "undisturbed": "undisturbed",
    "none": "no rollout state",
    "step": "step boundary",
    "sibling": "sibling",
    "token": "token",
}
Curve = Sequence[Sequence[float]]
"""(seconds, trained tokens) pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values to pixels of the plot."""

    seconds: float
    tokens: float

    def x(self, seconds: float) -> float:
        return LEFT + (RIGHT - LEFT) * seconds / self.seconds

    def y(self, tokens: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * tokens / self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One set-up in the picture."""

    name: str
    curve: Curve
    deaths: Curve
    goodput: float
    """Trained tokens per second."""
    regenerated: float


def picture(lines: Sequence[Line], *, title: str) -> str:
    """The SVG document. Raises ValueError without a line."""
    if not lines:
        raise ValueError("nothing to draw: no set-up was measured")
    scale = Scale(
        seconds=_round_up(max(point[0] for line in lines for point in line.curve)),
        tokens=_round_up(max(point[1] for line in lines for point in line.curve)),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12" '
        'fill="#22262c">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text((LEFT, 26), title, size=16, weight="bold"),
        _text((LEFT, 54), "trained tokens over time (x: killed)", size=12, weight="bold"),
        *_axes(scale),
        *(_curve(line, scale) for line in lines),
        *_bars(lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(scale: Scale) -> list[str]:
    parts = []
    for part in range(5):
        tokens, seconds = scale.tokens * part / 4, scale.seconds * part / 4
        y, x = scale.y(tokens), scale.x(seconds)
        parts += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#e4e7eb"/>',
            _text((LEFT - 8, y + 4), short(tokens), anchor="end"),
            _text((x, BOTTOM + 18), f"{seconds:g} s", anchor="middle"),
        ]
    parts.append(f'<line x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}" stroke="#22262c"/>')
    return parts


def _curve(line: Line, scale: Scale) -> str:
    """A staircase: tokens count when their step is applied."""
    colour = COLOURS.get(line.name, "#22262c")
    path, last = "", 0.0
    for number, (seconds, tokens) in enumerate(line.curve):
        x, y = scale.x(seconds), scale.y(tokens)
        path += f"M{x:.1f} {y:.1f}" if not number else f"L{x:.1f} {last:.1f}L{x:.1f} {y:.1f}"
        last = y
    crosses = "".join(
        _cross(scale.x(at), scale.y(tokens), colour=colour) for at, tokens in line.deaths
    )
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{crosses}'


def _cross(x: float, y: float, *, colour: str) -> str:
    return (
        f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{colour}" '
        'stroke-width="1.6" fill="none"/>'
    )


def _bars(lines: Sequence[Line]) -> list[str]:
    """Two groups of bars, one row a set-up; the same colours as the curves."""
    return [
        *_group(lines, top=TOP, title="goodput, tokens/s", values=[x.goodput for x in lines]),
        *_group(
            lines,
            top=TOP + 160,
            title="tokens generated again",
            values=[x.regenerated for x in lines],
        ),
    ]


def _group(lines: Sequence[Line], *, top: float, title: str, values: Sequence[float]) -> list[str]:
    parts = [_text((BAR_LEFT - 105, top - 22), title, size=12, weight="bold")]
    largest = max(values) or 1.0
    for row, (line, value) in enumerate(zip(lines, values, strict=True)):
        y = top - 8 + 24 * row
        width = (BAR_RIGHT - BAR_LEFT) * value / largest
        colour = COLOURS.get(line.name, "#22262c")
        parts += [
            _text((BAR_LEFT - 8, y + 12), LABELS.get(line.name, line.name), anchor="end"),
            f'<rect x="{BAR_LEFT}" y="{y}" width="{max(1.0, width):.1f}" height="16" '
            f'fill="{colour}"/>',
            _text((BAR_LEFT + width + 6, y + 12), short(value)),
        ]
    return parts


def _text(
    at: tuple[float, float],
    text: str,
    *,
    anchor: str = "start",
    size: int = 11,
    weight: str = "normal",
) -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{safe}</text>'
    )


def short(value: float) -> str:
    """``12.3 k`` for people."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 6, 8 times a power of ten, so that quarters are round."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    return next((step * power for step in (1, 2, 4, 6, 8) if step * power >= value), 10 * power)


def lines_of(found: Mapping[str, Mapping[str, object]]) -> list[Line]:
    """From the document of `bench_goodput`."""
    return [
        Line(
            name=name,
            curve=_points(figures["curve"]),
            deaths=_points(figures["deaths"]),
            goodput=_number(figures["goodput_tokens_per_s"]),
            regenerated=_number(figures["regenerated_tokens"]),
        )
        for name, figures in found.items()
    ]


def _points(value: object) -> Curve:
    assert isinstance(value, list)
    return value


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
