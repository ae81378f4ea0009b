"""Pictures of curves with matplotlib (extra `[plot]`): a page holds up to six.

Above, the throughput: points as measured, the curve through them, dashed where it is outside its
measurements, and the limits. Below, forecast over measured.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seer.calibration import Calibration, Measurements
from seer.cluster import Device
from seer.errors import UsageError
from seer.readers.files import write_whole
from seer.reports.curve_panels import Limit, Line, Panel, panels_of

FORMATS = (".png", ".pdf", ".svg")

_PER_PAGE = 6
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008): told apart by everybody."""
_INK, _QUIET, _GRID = "#22272e", "#6b7280", "#e5e7eb"
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": "#9ca3af",
    "axes.linewidth": 0.8,
    "axes.labelcolor": _QUIET,
    "axes.titlecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "svg.hashsalt": "seer",
}


def plot_calibration(
    calibration: Calibration,
    path: str,
    tables: Sequence[Measurements] = (),
    device: Device | None = None,
) -> list[str]:
    """Draw every curve of a calibration.

    Parameters
    ----------
    path : str
        `.png`, `.svg` or `.pdf`. Pages after the first become `name-2.png` and so on.
    tables : sequence of Measurements
        The rows of the fit, for the residuals of curves that keep none.
    device : Device, optional
        Its peaks are drawn.

    Returns
    -------
    list of str
        The files written.

    Raises
    ------
    UsageError
        matplotlib is missing, the format is not known, or no curve has a picture.
    """
    target = Path(path)
    matplotlib = check_target(path)
    panels = panels_of(calibration.curves, tables, device)
    if not panels:
        raise UsageError("no curve of this calibration has a picture", where=calibration.name)
    pages = [panels[i : i + _PER_PAGE] for i in range(0, len(panels), _PER_PAGE)]
    words = dict.fromkeys([calibration.name, calibration.device, calibration.date])
    title = " · ".join(word for word in words if word)
    written: list[str] = []
    with matplotlib.rc_context(_STYLE):
        for number, page in enumerate(pages, 1):
            beside = f"page {number} of {len(pages)}" if len(pages) > 1 else ""
            name = target if number == 1 else target.with_stem(f"{target.stem}-{number}")
            write_whole(name, _page(page, title, beside, target.suffix[1:].lower()))
            written.append(str(name))
    return written


def check_target(path: str) -> Any:
    """The module matplotlib, if a picture of that name can be drawn; raises UsageError if not.

    To be asked before the work that the picture is of.
    """
    if Path(path).suffix.lower() not in FORMATS:
        hint = "name it .png, .svg or .pdf"
        raise UsageError("the format of the picture is not known", where=path, hint=hint)
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise UsageError(
            "pictures need matplotlib, which is not installed",
            where="--plot",
            hint="pip install 'seer-forecast[plot]'",
        ) from None
    return matplotlib


def _page(panels: Sequence[Panel], title: str, beside: str, kind: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = 1 if len(panels) == 1 else 2
    down = -(-len(panels) // across)
    figure = Figure(figsize=(7.2 * across, 4.9 * down + 0.6), facecolor="white")
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    grid = figure.add_gridspec(
        down,
        across,
        left=0.62 / (7.2 * across),
        right=1 - 0.3 / (7.2 * across),
        top=1 - 1.15 / height,
        bottom=0.62 / height,
        wspace=0.16,
        hspace=0.36,
    )
    left = 0.25 / (7.2 * across)
    figure.text(left, 1 - 0.35 / height, title, size=13, weight="bold", color=_INK, va="center")
    figure.text(1 - left, 1 - 0.35 / height, beside, size=9, color=_QUIET, ha="right", va="center")
    for i, panel in enumerate(panels):
        parts = grid[i // across, i % across].subgridspec(2, 1, height_ratios=(3.4, 1), hspace=0.09)
        upper = figure.add_subplot(parts[0])
        lower = figure.add_subplot(parts[1], sharex=upper)
        _draw(upper, panel)
        _draw_residuals(lower, panel)
        upper.tick_params(labelbottom=False)
    out = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(out, format=kind, dpi=130, metadata=metadata[kind])
    return out.getvalue()


def _draw(axes: Any, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", size=10.5, weight="bold", pad=19)
    axes.text(0, 1.025, panel.footnote, transform=axes.transAxes, size=8, color=_QUIET)
    low, high = _range(panel)
    is_log = panel.is_log and high > 10 * low
    axes.set_xscale("log")
    axes.set_yscale("log" if is_log else "linear")
    axes.set_ylabel(panel.y_label)
    _grid(axes)
    few = len(panel.cloud_x) < 1000
    axes.scatter(
        panel.cloud_x,
        panel.cloud_y,
        s=9 if few else 4,
        color="#6b7280",
        alpha=0.55 if few else 0.3,
        linewidths=0,
        zorder=2,
    )
    for colour, line in zip(_colours(len(panel.lines)), panel.lines, strict=True):
        _draw_line(axes, line, colour)
    high = max([high, *(limit.y for limit in panel.limits if limit.y < 3 * high)])
    for limit in panel.limits:
        _draw_limit(axes, limit, high)
    axes.set_ylim((low / 1.5, high * 1.6) if is_log else (0, high * 1.12))
    axes.legend(loc="upper left", frameon=False, fontsize=7.5, labelcolor=_INK, borderaxespad=0.2)


def _draw_limit(axes: Any, limit: Limit, high: float) -> None:
    """A line right of the legend; a number where the line would flatten everything else."""
    if limit.y > high:
        axes.text(0.99, 0.97, f"{limit.label}, far above", transform=axes.transAxes, size=8)
        axes.texts[-1].set(color=_INK, ha="right", va="top")
        return
    style = "-" if limit.is_bound else (0, (1, 1.5))
    axes.axhline(limit.y, xmin=0.36, color=_INK, linewidth=1.0, linestyle=style, zorder=1.5)
    place = axes.get_yaxis_transform()
    axes.annotate(limit.label, (1, limit.y), xycoords=place, size=8, color=_INK, ha="right")
    axes.texts[-1].set(position=(-2, 2.5), anncoords="offset points")


def _grid(axes: Any) -> None:
    """Quiet lines behind everything. Small ticks cost most of the time and say nothing."""
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.minorticks_off()


def _draw_line(axes: Any, line: Line, colour: Any) -> None:
    """Solid inside the measured range, dashed outside."""
    inside = (line.x >= line.low) & (line.x <= line.high)
    solid = np.where(inside, line.y, np.nan)
    axes.plot(line.x, line.y, color=colour, linewidth=1.1, linestyle=(0, (4, 2.5)), alpha=0.75)
    axes.plot(line.x, solid, color=colour, linewidth=1.7, label=line.label)
    axes.scatter(
        line.point_x, line.point_y, s=17, color=colour, edgecolors="white", linewidths=0.5, zorder=3
    )


def _colours(count: int) -> list[Any]:
    """Distinct colours for a few lines, a ramp for many."""
    if count <= len(_COLOURS):
        return list(_COLOURS[:count])
    import matplotlib

    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.92, count)))


def _range(panel: Panel) -> tuple[float, float]:
    """Lowest and highest throughput inside the measurements."""
    parts = [line.y[(line.x >= line.low) & (line.x <= line.high)] for line in panel.lines]
    heights = np.concatenate([*parts, *(line.point_y for line in panel.lines), panel.cloud_y])
    heights = heights[heights > 0]
    return (float(heights.min()), float(heights.max())) if len(heights) else (0.1, 1.0)


def _draw_residuals(axes: Any, panel: Panel) -> None:
    axes.set_xlabel(panel.x_label)
    _grid(axes)
    axes.axhline(0, color=_INK, linewidth=0.9)
    if not len(panel.residual):
        axes.set_yticks([])
        axes.text(
            0.5,
            0.5,
            "no measurements at hand to compare with",
            transform=axes.transAxes,
            ha="center",
            va="bottom",
            size=8,
            color=_QUIET,
        )
        return
    percent = 100 * panel.residual
    bound = float(np.clip(1.25 * np.quantile(np.abs(percent), 0.98), 2.0, 100.0))
    inside = np.clip(percent, -bound, bound)
    axes.scatter(panel.residual_x, inside, s=6, color=_COLOURS[0], alpha=0.45, linewidths=0)
    low, high = np.quantile(percent, (0.05, 0.95))
    axes.axhspan(
        max(low, -bound), min(high, bound), color=_COLOURS[0], alpha=0.08, linewidth=0, zorder=0
    )
    axes.set_ylim(-bound * 1.05, bound * 1.05)
    axes.set_ylabel("error, %")
    words = f"{panel.residual_label}: median {np.median(np.abs(percent)):.1f} %, nine in ten shaded"
    axes.text(0.99, 0.93, words, transform=axes.transAxes, size=7.5, color=_QUIET)
    axes.texts[-1].set(ha="right", va="top")
    axes.texts[-1].set_bbox({"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5})
