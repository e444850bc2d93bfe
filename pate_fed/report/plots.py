"""Plots of a run as inline SVG: the same input gives the same bytes.

Matplotlib draws through its object interface, with its own defaults and fonts, so a user's settings
never change the picture. Text stays text: the page's font shows it, a screen reader finds it, and a
data set's names are never read as formulas or markup.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from markupsafe import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pate_fed.record.audit import Step

STUDENT_COLOR = "#0b5f6b"
ANSWERED_COLOR = "#0b5f6b"
REFUSED_COLOR = "#d9a441"
YARDSTICK_COLOR = "#9aa8b5"
CAP_COLOR = "#9b2c2c"
INK = "#1d2a35"
GRID = "#dde3e8"

MAX_CLASSES = 120
"""Most classes that one plot shows: those asked most often."""

_SETTINGS: Mapping[str, object] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",  # comes with Matplotlib
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": YARDSTICK_COLOR,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 1.2,
}
_WIDTH = 7.4  # inches
_CLASSES_PER_COLUMN = 34
_NAME_LENGTH = 24


def classes_plot(rows: Sequence[tuple[str, int, int]], *, summary: str) -> str:
    """Draw answered and refused queries of each class, stacked.

    A row is a class name, answered and refused queries; at most `MAX_CLASSES` are drawn.
    """
    rows = rows[:MAX_CLASSES]
    columns = -(-len(rows) // _CLASSES_PER_COLUMN)
    per_column = -(-len(rows) // columns)
    most = max((answered + refused for _, answered, refused in rows), default=0) or 1
    longest = max(min(len(name), _NAME_LENGTH // columns + 6) for name, _, _ in rows)
    with _own_settings("classes"):
        step = 0.3 if columns == 1 else 0.2
        figure, all_axes = _figure(
            height=step * per_column + 0.95,
            left=max(0.5, (0.085 if columns == 1 else 0.07) * longest + 0.25),
            columns=columns,
            top=0.4,
        )
        for column, axes in enumerate(all_axes):
            part = rows[column * per_column : (column + 1) * per_column]
            for row, (_, answered, refused) in enumerate(part):
                axes.barh(row, answered, height=0.66, color=ANSWERED_COLOR)
                axes.barh(
                    row, refused, left=answered, height=0.66, color=REFUSED_COLOR, hatch="////",
                    edgecolor="white", linewidth=0,
                )  # fmt: skip
                axes.text(answered + refused + most * 0.02, row, f"{answered} + {refused}",
                          va="center", fontsize=8)  # fmt: skip
            _name_rows(axes, [_shorten(name, _NAME_LENGTH // columns + 6) for name, _, _ in part])
            axes.set_ylim(per_column - 0.4, -0.6)
            axes.set_xlim(0, most * 1.3)
            axes.locator_params(axis="x", integer=True, nbins=5)
            axes.set_xlabel("queries: answered + no answer" if columns == 1 else "queries")
        _legend(figure, [("answered", ANSWERED_COLOR, ""), ("no answer", REFUSED_COLOR, "////")])
        return _svg(figure, name="classes", title="Queries per class", summary=summary)


def price_plot(
    points: Sequence[tuple[float, float]], *, budget: float, view: str, summary: str
) -> str:
    """Draw the cost of runs in a view over the answers that they expect.

    A point is a number of expected answers and its epsilon; they ascend.
    """
    with _own_settings("price"):
        figure, (axes,) = _figure(height=3.6, left=0.75, columns=1, bottom=0.62)
        top, right = max(budget, *(epsilon for _, epsilon in points)), points[-1][0] or 1.0
        axes.plot(*zip(*points, strict=True), "o-", color=STUDENT_COLOR, linewidth=2, markersize=4)
        # A ground, not a line: nothing crosses the curve.
        axes.axhspan(budget, top * 1.16, color=CAP_COLOR, alpha=0.1, linewidth=0)
        axes.text(0.01 * right, budget + 0.02 * top, "budget", color=CAP_COLOR, fontweight="bold")
        axes.set_xlim(0, right * 1.03)
        axes.set_ylim(0, top * 1.16)
        axes.set_xlabel("answers to expect")
        axes.set_ylabel(f"epsilon (view: {view})")
        return _svg(figure, name="price", title="Epsilon over answers", summary=summary)


def results_plot(
    points: Sequence[tuple[str, str, float | None, Sequence[float]]], *, axis: str, summary: str
) -> str:
    """Draw what was measured, one panel for each measure: mean, and the range over seeds.

    A point is a measure, a series, a place along the axis (None for a level line) and values.
    """
    measures = list(dict.fromkeys(point[0] for point in points))
    with _own_settings("results"):
        from matplotlib.figure import Figure  # noqa: PLC0415 - see `_own_settings`

        figure = Figure(figsize=(_WIDTH, 3.1 * len(measures)), layout="constrained")
        for axes, measure in zip(
            figure.subplots(len(measures), squeeze=False)[:, 0], measures, strict=True
        ):
            shown = [point[1:] for point in points if point[0] == measure]
            for number, series in enumerate(dict.fromkeys(point[0] for point in shown)):
                color = f"C{number % 10}"
                ours = [point[1:] for point in shown if point[0] == series]
                _draw_series(axes, _shorten(series, 3 * _NAME_LENGTH), ours, color=color)
            axes.set_xlabel(axis)
            axes.set_title(_shorten(measure, 4 * _NAME_LENGTH), loc="left", fontsize=9.5)
            axes.grid(color=GRID, linewidth=0.8)
            axes.legend(frameon=False, fontsize=8)
        return _svg(figure, name="results", title="Results", summary=summary)


def leak_plot(curve: Sequence[Step], *, summary: str) -> str:
    """Draw an audit's errors over the answers that an attacker gets."""
    points = [
        (
            "error: share of votes in a wrong class",
            "mean of rows, and their range",
            math.log10(one.asks),
            one.errors,
        )
        for one in curve
    ]
    return results_plot(points, axis="answers to one question, as a power of ten", summary=summary)


def _draw_series(
    axes: Axes, name: str, points: Sequence[tuple[float | None, Sequence[float]]], *, color: str
) -> None:
    """Draw a line through the means of one series; a level line for a point without a place."""
    placed = sorted((place, values) for place, values in points if place is not None)
    for place, values in points:
        if place is None:
            axes.axhline(
                sum(values) / len(values), color=color, linestyle="--", linewidth=1, label=name
            )
    if not placed:
        return
    means = [sum(values) / len(values) for _, values in placed]
    spans = [
        # The rounded mean of equal values may lie beside them.
        [max(0.0, mean - min(values)) for mean, (_, values) in zip(means, placed, strict=True)],
        [max(0.0, max(values) - mean) for mean, (_, values) in zip(means, placed, strict=True)],
    ]
    axes.errorbar(
        [place for place, _ in placed],
        means,
        yerr=spans,
        color=color,
        marker="o",
        markersize=4,
        linewidth=1.2,
        capsize=2,
        label=name,
    )


def standalone(picture: str) -> str:
    """Write a picture of a page as its own file, on white ground."""
    return picture.replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" style="background: white" ', 1
    )


@contextmanager
def _own_settings(name: str) -> Iterator[None]:
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and most commands draw nothing

    with mpl.rc_context(), warnings.catch_warnings():
        # The font that measures a name may lack a letter of it; the page's own font will have it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        mpl.rcParams["svg.hashsalt"] = f"pate-fed {name}"
        yield


def _figure(
    *, height: float, left: float, columns: int, top: float = 0.08, bottom: float = 0.5
) -> tuple[Figure, list[Axes]]:
    """Make a figure with margins in inches; `left` is that of each column of axes."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - see `_own_settings`

    figure = Figure(figsize=(_WIDTH, height))
    all_axes = []
    for column in range(columns):
        wide = _WIDTH / columns
        box = (
            (column * wide + left) / _WIDTH,
            bottom / height,
            (wide - left - 0.12) / _WIDTH,
            (height - top - bottom) / height,
        )
        all_axes.append(figure.add_axes(box))
    return figure, all_axes


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), labels=list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)


def _legend(figure: Figure, entries: Sequence[tuple[str, str, str]]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415 - see `_own_settings`

    patches = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", linewidth=0, label=name)
        for name, color, hatch in entries
    ]
    figure.legend(
        handles=patches, loc="upper left", ncols=len(patches), frameon=False, borderaxespad=0.1
    )


def _shorten(name: str, length: int) -> str:
    # Control characters may not stand in SVG, and a line end would break the row.
    name = "".join(letter if letter.isprintable() else " " for letter in name)
    return name if len(name) <= length else name[: length - 1] + "…"


def _svg(figure: Figure, *, name: str, title: str, summary: str) -> str:
    """Write a figure as one `svg` element to stand in a page."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    # This rule would reach the whole page.
    drawing = re.sub(r"<style [^>]*>.*?</style>", "", drawing, flags=re.DOTALL)
    # Text stands between tags with < and > escaped: every match is a tag.
    drawing = re.sub(r"<[^>]+>", lambda tag: _own_ids(tag.group(), name), drawing)
    head_end = drawing.index(">") + 1
    view = re.findall(r'viewBox="[^"]*"', drawing[:head_end])[0]
    return (
        f'<svg {view} role="img" aria-labelledby="{name}-title {name}-desc" class="plot">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(summary)}</desc>'
        f"{drawing[head_end:].strip()}"
    )


def _own_ids(tag: str, name: str) -> str:
    """Make a tag's ids, and references to them, unique in a page with several pictures."""
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = tag.replace("url(#", f"url(#{name}-")
    return re.sub(r'\bxlink:href="#', f'href="#{name}-', tag)
