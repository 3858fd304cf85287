"""The report's figures as SVG: no script draws them, so they print, and every point says its
values in words. Colours are classes, `m0` to `m12` by method; the page's style sheet fills them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from compacter.methods import METHODS

GAP = 15.0
"""Least distance between the baselines of two labels."""


Place = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """A drawing with its words."""

    name: str
    """Also that of its file."""
    title: str
    caption: str
    svg: str
    small: bool = False
    """One of several side by side, with a legend for all."""
    css: str = ""


@dataclass(frozen=True)
class Bubble:
    """A point whose area is a quantity. The paper's points are rings."""

    label: str
    method: str
    x: float
    y: float
    size: float
    words: str
    paper: bool = False
    marker: int = 0


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    words: str
    deviation: float = 0.0


@dataclass(frozen=True)
class Line:
    label: str
    method: str
    points: tuple[Point, ...]
    marker: int = 0
    """The shape of its points tells lines of one method apart."""
    words: str = ""
    """What the line as a whole tells a reader who cannot see it."""


MARKERS: tuple[tuple[Place, ...], ...] = (
    (),
    ((-0.89, -0.89), (0.89, -0.89), (0.89, 0.89), (-0.89, 0.89)),
    ((0, -1.35), (1.17, 0.67), (-1.17, 0.67)),
    ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    ((0, 1.35), (1.17, -0.67), (-1.17, -0.67)),
)
"""The corners of shapes with about the area of a circle of radius 1; the first is the circle."""


def marker(number: int, x: float, y: float, radius: float) -> tuple[str, dict[str, str]]:
    """A shape as an element and its attributes."""
    corners = MARKERS[number % len(MARKERS)]
    if not corners:
        return "circle", {"cx": f"{x:g}", "cy": f"{y:g}", "r": f"{radius:.1f}"}
    places = (f"{x + radius * across:.1f},{y + radius * down:.1f}" for across, down in corners)
    return "polygon", {"points": " ".join(places)}


def method_class(method: str) -> str:
    names = list(METHODS)
    return f"m{names.index(method) if method in names else len(names)}"


# Axes


@dataclass(frozen=True)
class Axis:
    """Values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def steps(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    raw = (high - low) / count or 1.0
    power = 10 ** math.floor(math.log10(raw))
    width = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= raw * 0.999)
    first = math.ceil(low / width - 1e-9)
    return [round(i * width, 10) for i in range(first, math.floor(high / width + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """The powers of ten around two numbers."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _span(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the values take."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or max(1.0, 0.02 * abs(high))
    return low - room, high + room


# Drawing


class _Drawing:
    def __init__(self, name: str, title: str, words: str, width: float, height: float) -> None:
        self.root = Element(
            "svg",
            {
                "class": "figure",
                "viewBox": f"0 0 {width:g} {height:g}",
                "role": "group",
                "aria-labelledby": f"{name}-title {name}-desc",
            },
        )
        SubElement(self.root, "title", id=f"{name}-title").text = title
        SubElement(self.root, "desc", id=f"{name}-desc").text = words
        self.width, self.height = width, height

    def add(self, tag: str, parent: Element | None = None, /, **attributes: float | str) -> Element:
        plain = {k.rstrip("_").replace("_", "-"): _text(v) for k, v in attributes.items()}
        return SubElement(self.root if parent is None else parent, tag, plain)

    def text(self, content: str, x: float, y: float, **attributes: float | str) -> None:
        self.add("text", None, x=x, y=y, **attributes).text = content

    def mark(self, parent: Element, number: int, x: float, y: float, radius: float) -> None:
        tag, attributes = marker(number, x, y, radius)
        SubElement(parent, tag, attributes)

    def axes(
        self,
        x: Axis,
        y: Axis,
        x_ticks: Sequence[tuple[float, str]],
        titles: tuple[str, str],
    ) -> None:
        for value in steps(y.low, y.high):
            place = y(value)
            self.add("line", x1=x.start, x2=x.end, y1=place, y2=place, class_="grid")
            self.text(f"{value:g}", x.start - 7, place + 4, class_="tick", text_anchor="end")
        for value, words in x_ticks:
            place = x(value)
            self.add("line", x1=place, x2=place, y1=y.start, y2=y.start + 5, class_="axis")
            self.text(words, place, y.start + 20, class_="tick", text_anchor="middle")
        self.add("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis")
        middle = (x.start + x.end) / 2
        self.text(titles[0], middle, self.height - 6, class_="axis-title", text_anchor="middle")
        self.text(titles[1], 0, 13, class_="axis-title")

    def __str__(self) -> str:
        return tostring(self.root, encoding="unicode")


def _text(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _apart(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Places near the wanted ones that are at least GAP apart."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = [0.0] * len(wanted)
    previous = low - GAP
    for i in order:
        places[i] = previous = max(wanted[i], previous + GAP)
    limit = high
    for i in reversed(order):
        places[i] = min(places[i], limit)
        limit = places[i] - GAP
    return [round(place, 1) for place in places]


# Figures


def bubbles(name: str, title: str, caption: str, points: Sequence[Bubble]) -> Figure:
    """Figure 1: score against trained parameters on a log axis; the area is the memory."""
    drawing = _Drawing(name, title, caption, 640, 400)
    low, high = _span([point.y for point in points])
    ticks = decades(min(p.x for p in points), max(p.x for p in points))
    x = Axis(ticks[0], ticks[-1], 50, 520, log=True)
    y = Axis(low, high, 345, 32)
    drawing.axes(
        x, y, [(tick, f"{tick:g}%") for tick in ticks], ("trained parameters per task", "score")
    )
    largest = max(point.size for point in points) or 1.0
    radii = [4 + 11 * math.sqrt(max(point.size, 0.0) / largest) for point in points]
    circles = [(x(p.x), y(p.y), r) for p, r in zip(points, radii, strict=True)]
    labels = _labels(
        [(p.label, *circle) for p, circle in zip(points, circles, strict=True) if not p.paper],
        circles,
        drawing.width,
        y.start,
    )
    for (start, end), _ in labels:
        if end:
            drawing.add("line", class_="leader", x1=start[0], y1=start[1], x2=end[0], y2=end[1])
    for point, (across, down, radius) in sorted(
        zip(points, circles, strict=True), key=lambda pair: -pair[1][2]
    ):
        group = drawing.add(
            "g",
            class_=f"point {method_class(point.method)}" + (" paper" if point.paper else ""),
            tabindex=0,
            role="img",
        )
        drawing.add("title", group).text = point.words
        drawing.mark(group, point.marker, across, down, radius)
    own = [point for point in points if not point.paper]
    for point, (_, (left, base)) in zip(own, labels, strict=True):
        css = f"label {method_class(point.method)}"
        drawing.text(point.label, round(left, 1), round(base, 1), class_=css)
    return Figure(name, title, caption, str(drawing), css="bubbles")


def _labels(
    wanted: Sequence[tuple[str, float, float, float]],
    circles: Sequence[tuple[float, float, float]],
    width: float,
    bottom: float,
) -> list[tuple[tuple[Place, Place | None], Place]]:
    """For each bubble: a line to its label, where that is not beside it, and the label's place:
    the nearest that covers least of other labels and bubbles."""
    boxes: list[tuple[float, float, float, float]] = [
        (cx - r, cy - r, cx + r, cy + r) for cx, cy, r in circles
    ]
    found: list[tuple[tuple[Place, Place | None], Place]] = [(((0, 0), None), (0, 0))] * len(wanted)
    for i in sorted(range(len(wanted)), key=lambda i: -wanted[i][1]):
        text, cx, cy, r = wanted[i]
        long = 7.3 * len(text)
        best = None
        for distance in (4, 16, 30, 46, 64, 84, 106, 130):
            for turn in range(16):
                angle = 2 * math.pi * turn / 16
                edge_x = cx + (r + distance) * math.cos(angle)
                edge_y = cy + (r + distance) * math.sin(angle)
                left = edge_x - long * (1 - math.cos(angle)) / 2
                box = (left, edge_y - 8, left + long, edge_y + 7)
                outside = box[0] < 46 or box[2] > width or box[1] < 16 or box[3] > bottom - 2
                cost = sum(_overlap(box, other) for other in boxes) + distance + 1e6 * outside
                if best is None or cost < best[0]:
                    best = (cost, distance, box, (edge_x, edge_y))
        assert best is not None
        _, distance, box, edge = best
        boxes.append(box)
        leader = (round(edge[0], 1), round(edge[1], 1)) if distance > 10 else None
        found[i] = (((cx, cy), leader), (box[0], box[3] - 3))
    return found


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def lines(
    name: str,
    title: str,
    caption: str,
    series: Sequence[Line],
    titles: tuple[str, str],
    *,
    small: bool = False,
    log: bool = False,
    reachable: bool = True,
) -> Figure:
    """Lines with bands of one standard deviation. Small ones leave their labels to a legend.
    `reachable`: points, not only lines, can be reached with the keyboard."""
    width, height = (360, 250) if small else (640, 380)
    drawing = _Drawing(name, title, caption, width, height)
    xs = sorted({point.x for line in series for point in line.points})
    ys = [p.y + s * p.deviation for line in series for p in line.points for s in (-1, 1)]
    low, high = _span(ys)
    x = Axis(xs[0], xs[-1], 46, width - (14 if small else 150), log=log)
    y = Axis(low, high, height - 50, 30)
    ticks = xs if log else steps(xs[0], xs[-1], 4)
    drawing.axes(x, y, [(tick, f"{tick:,.6g}") for tick in ticks], titles)
    for line in series:
        _line(drawing, line, x, y, reachable)
    if not small:
        places = _apart([y(line.points[-1].y) + 4 for line in series], 30, height - 50)
        for line, place in zip(series, places, strict=True):
            css = f"label {method_class(line.method)}"
            drawing.text(line.label, x(line.points[-1].x) + 10, place, class_=css)
    return Figure(name, title, caption, str(drawing), small)


def _line(drawing: _Drawing, line: Line, x: Axis, y: Axis, reachable: bool) -> None:
    group = drawing.add("g", class_=f"series {method_class(line.method)}")
    if line.words:
        group.set("role", "img")
        group.set("tabindex", "0")
        group.set("aria-label", line.words)
    if len(line.points) > 1 and any(point.deviation for point in line.points):
        upper = [f"{x(p.x):g},{y(p.y + p.deviation):g}" for p in line.points]
        lower = [f"{x(p.x):g},{y(p.y - p.deviation):g}" for p in reversed(line.points)]
        drawing.add("polygon", group, points=" ".join(upper + lower), class_="band")
    path = " ".join(f"{x(p.x):g},{y(p.y):g}" for p in line.points)
    drawing.add("polyline", group, points=path)
    for point in line.points:
        dot = drawing.add("g", group, class_="point")
        if reachable:
            dot.set("tabindex", "0")
            dot.set("role", "img")
        drawing.add("title", dot).text = point.words
        drawing.mark(dot, line.marker, x(point.x), y(point.y), 4.5 if line.marker else 3)
