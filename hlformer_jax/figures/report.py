"""The figures by name, and the page with all figures that apply to some runs."""

import base64
import html
import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax import files, terminal
from hlformer_jax.errors import UserError
from hlformer_jax.figures import drawing
from hlformer_jax.figures.corpus import Options, Subject, data_lines
from hlformer_jax.figures.drawing import Drawing
from hlformer_jax.retrieval import ranking


class Listing(NamedTuple):
    """An entry of `FIGURES`.

    Attributes:
      module: module whose function with the figure's name draws it.
      title: title of the figure.
      source: figure or equation of the paper after which it is drawn.
    """

    module: str
    title: str
    source: str


FIGURES: Mapping[str, Listing] = {
    "frames": Listing("corpus", "Frames of a video by moment", "HLFormer, Figure 4"),
    "hyperbolic": Listing(
        "geometry", "Distances from the origin, and the Poincaré disc", "HLFormer, Figure 5"
    ),
    "queries": Listing(
        "corpus", "Captions and clips of two similar videos", "GMMFormer v2, Figure 6"
    ),
    "retrieved": Listing("corpus", "First results of captions", "GMMFormer v2, Figure 9"),
    "heatmap": Listing("attention", "Captions over time", "GMMFormer v2, Figure 7"),
    "positioning": Listing(
        "geometry", "Spread of the captions of a video", "GMMFormer v2, Figure 8"
    ),
    "windows": Listing(
        "attention", "Windows of the blocks", "HLFormer, equation 10; GMMFormer v2, equation 13"
    ),
    "weights": Listing(
        "attention",
        "Weights of the blocks by position",
        "HLFormer, equation 17; GMMFormer v2, equation 2",
    ),
    "ball": Listing(
        "geometry",
        "Action trees in the Poincaré disc",
        "HOVER; projected by HoroPCA",
    ),
    "leaves": Listing("corpus", "Action trees by their leaves", "HOVER, Figure 1(b)"),
}
"""The figures by name, in the order of the page."""

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff;
       max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; }
p { margin: .3rem 0; } .source { color: #5a5a5a; font-size: .875rem; }
.wide { overflow-x: auto; } figure { margin: .6rem 0 0; }
img { display: block; width: 100%; height: auto; } a { color: #00558a; }
@media (max-width: 40rem) { figure.wide img { min-width: 34rem; } }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
"""


def draw(name: str, subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw a figure of some runs.

    Args:
      name: name of the figure in `FIGURES`.
      subjects: the runs.
      options: options of the figure.

    Raises:
      UserError: if the figure applies to none of the runs.
    """
    # Only the module of the requested figure is imported.
    module = importlib.import_module(f"hlformer_jax.figures.{FIGURES[name].module}")
    drawn: Callable[[Sequence[Subject], Options], Drawing] = getattr(module, name)
    with drawing.styled():
        result = drawn(subjects, options)
        lines = [f"{line}; {options.split} split shown" for line in data_lines(subjects)]
        drawing.add_title(result.figure, lines, 8, color=drawing.GREY)
    return result


def check_place(name: str, out: Path, replace: files.Replace) -> None:
    """Check that a figure, or the report of all figures, may be written into a directory.

    Raises:
      OSError: if an existing file must not be replaced.
    """
    names = FIGURES if name == "report" else (name,)
    pictures = [f"{figure}.{kind}" for figure in names for kind in drawing.KINDS]
    for written in pictures + ["report.html"] * (name == "report"):
        files.check_output(out / written, replace)


def write(
    subjects: Sequence[Subject],
    options: Options,
    out: Path,
    report: Callable[[str], None],
    replace: files.Replace = files.Replace.OWN,
) -> Path:
    """Draw every figure that applies, and a page of all, which needs no other file or network.

    Args:
      subjects: the runs.
      options: options of the figures.
      out: directory of the files.
      report: receives one line about each figure.
      replace: which existing files may be replaced.

    Returns:
      The path of the page.
    """
    check_place("report", out, replace)
    parts, without = [], []
    for name, listing in terminal.track(FIGURES.items(), "figure"):
        try:
            drawn = draw(name, subjects, options)
        except UserError as reason:
            report(f"{name}: not drawn: {reason}")
            without.append((name, listing, str(reason)))
            continue
        drawing.write(drawn.figure, out / name, drawn.table, replace)
        report(f"{name}: {out / name}.png, .svg, .csv")
        picture = base64.b64encode((out / f"{name}.png").read_bytes()).decode()
        parts.append(_section(name, listing, drawn.shows, picture))
    path = out / "report.html"
    files.write_bytes(path, _page(subjects, options, parts, without).encode(), replace)
    return path


def _section(name: str, listing: Listing, shows: str, picture: str) -> str:
    title, source, shows = (html.escape(x) for x in (listing.title, listing.source, shows))
    links = ", ".join(f'<a href="{name}.{end}">{end.upper()}</a>' for end in ("svg", "csv"))
    return (
        f'<section id="{name}"><h2>{title}</h2>\n<p>{shows}</p>\n'
        f'<figure class="wide"><img alt="{title}" src="data:image/png;base64,{picture}"></figure>\n'
        f'<p class="source">After {source}. Beside this page: {links}.</p></section>\n'
    )


def _page(
    subjects: Sequence[Subject],
    options: Options,
    parts: Sequence[str],
    without: Sequence[tuple[str, Listing, str]],
) -> str:
    names = ", ".join(dict.fromkeys(subject.label for subject in subjects))
    title = html.escape(f"What {names} {'sees' if len(subjects) == 1 else 'see'}")
    about = "".join(
        f'<p class="source">{html.escape(line)}; {options.split} split shown.</p>\n'
        for line in data_lines(subjects)
    )
    rest = "".join(
        f"<li>{html.escape(listing.title)} ({name}): {html.escape(reason)}</li>\n"
        for name, listing, reason in without
    )
    if rest:
        rest = f"<section><h2>Figures that do not apply</h2>\n<ul>\n{rest}</ul></section>\n"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f'{about}<div class="wide">{metrics_table(subjects)}</div>\n{"".join(parts)}{rest}'
        "</body>\n</html>\n"
    )


def metrics_table(subjects: Sequence[Subject]) -> str:
    """Return an HTML table of the runs' recorded metrics of the whole test split, a row per run."""
    recorded = [_metrics(subject.run.directory) for subject in subjects]
    unfinished = [metrics.pop("unfinished", None) for metrics in recorded]
    labels = [
        f"{subject.label} (unfinished: {epoch})" if epoch else subject.label
        for subject, epoch in zip(subjects, unfinished, strict=True)
    ]
    # HOVER also has metrics for trees of each size, "leaves=2/…".
    names = [name for name in dict.fromkeys(itertools.chain(*recorded)) if "=" not in name]
    if not names:
        return "<p>No test metrics were recorded.</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{html.escape(label)}</td>"
        + "".join(f"<td>{_cell(name, metrics.get(name))}</td>" for name in names)
        + "</tr>\n"
        for label, metrics in zip(labels, recorded, strict=True)
    )
    return f"<table>\n<tr><th>test split</th>{head}</tr>\n{rows}</table>"


def _metrics(directory: Path) -> dict[str, Any]:
    """Return the numbers of a run's test_metrics.json; empty if there is no such file."""
    path = directory / ranking.METRICS_FILE
    try:
        recorded = dict(files.parse_json(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): restore it from a copy") from error
    return {
        name: value
        for name, value in recorded.items()
        if isinstance(value, int | float) or name == "unfinished"
    }


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else ranking.format_metric(name, value)
