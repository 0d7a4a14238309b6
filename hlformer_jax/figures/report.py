"""All figures that runs can be drawn as, in one page that needs nothing but itself."""

import base64
import html
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.data.synthetic import is_synthetic
from hlformer_jax.errors import UserError
from hlformer_jax.figures import drawing, registry
from hlformer_jax.figures.drawing import Options, Subject
from hlformer_jax.retrieval import results

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


def write(
    subjects: Sequence[Subject], options: Options, out: Path, tell: Callable[[str], None]
) -> Path:
    """Draws every figure that applies, and a page with all of them.

    Args:
      subjects: the runs.
      options: what is asked for.
      out: the directory of the figures and of report.html.
      tell: takes a line on each figure.

    Returns:
      The page.

    Raises:
      OSError: when they cannot be written.
    """
    parts, without = [], []
    for name, listing in registry.FIGURES.items():
        try:
            drawn = registry.draw(name, subjects, options)
        except UserError as reason:
            tell(f"{name}: not drawn: {reason}")
            without.append((name, listing, str(reason)))
            continue
        drawing.write(drawn, out / name)
        tell(f"{name}: {out / name}.png, .svg, .csv")
        picture = base64.b64encode((out / f"{name}.png").read_bytes()).decode()
        parts.append(_section(name, listing, drawn.shows, picture))
    page = _page(subjects, options, parts, without)
    path = out / "report.html"
    files.write_bytes(path, page.encode())
    return path


def _section(name: str, listing: registry.Listing, shows: str, picture: str) -> str:
    title, source, said = (html.escape(x) for x in (listing.title, listing.source, shows))
    files_of = ", ".join(f'<a href="{name}.{end}">{end.upper()}</a>' for end in ("svg", "csv"))
    return (
        f'<section id="{name}"><h2>{title}</h2>\n<p>{said}</p>\n'
        f'<figure class="wide"><img alt="{title}" src="data:image/png;base64,{picture}"></figure>\n'
        f'<p class="source">After {source}. Beside this page: {files_of}.</p></section>\n'
    )


def _page(
    subjects: Sequence[Subject],
    options: Options,
    parts: Sequence[str],
    without: Sequence[tuple[str, registry.Listing, str]],
) -> str:
    names = ", ".join(dict.fromkeys(subject.label for subject in subjects))
    title = html.escape(f"What {names} {'sees' if len(subjects) == 1 else 'see'}")
    data = subjects[0].run.config.data
    collection = "synthetic corpus" if is_synthetic(data) else data.collection
    left = "".join(
        f"<li>{html.escape(listing.title)} ({name}): {html.escape(reason)}</li>\n"
        for name, listing, reason in without
    )
    rest = (
        f"<section><h2>Figures that do not apply</h2>\n<ul>\n{left}</ul></section>\n"
        if left
        else ""
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f'<p class="source">Data set: {html.escape(collection)}; videos shown are of the'
        f" {options.split} split.</p>\n"
        f'<div class="wide">{metrics_table(subjects)}</div>\n{"".join(parts)}{rest}'
        "</body>\n</html>\n"
    )


def metrics_table(subjects: Sequence[Subject]) -> str:
    """The metrics of the whole test split that the runs recorded, as HTML: a row for each run."""
    recorded = [_metrics(subject.run.directory) for subject in subjects]
    # HOVER's have those of trees of each size too, "leaves=2/…".
    names = [name for name in dict.fromkeys(itertools.chain(*recorded)) if "=" not in name]
    if not names:
        return "<p>No test metrics were recorded.</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{html.escape(subject.label)}</td>"
        + "".join(f"<td>{_shown(name, metrics.get(name))}</td>" for name in names)
        + "</tr>\n"
        for subject, metrics in zip(subjects, recorded, strict=True)
    )
    return f"<table>\n<tr><th>test split</th>{head}</tr>\n{rows}</table>"


def _metrics(directory: Path) -> Mapping[str, Any]:
    """What a run recorded of its test split; nothing where it recorded nothing."""
    try:
        metrics = files.parse_json((directory / results.METRICS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    recorded = metrics if isinstance(metrics, dict) else {}
    return {name: value for name, value in recorded.items() if isinstance(value, int | float)}


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else results.written(name, value)
