"""Tables, records and drawn lines that the tests of plots share."""

import numpy as np


def row(variant, sums, value=None, published=None, series="", failures=()):
    return {
        "variant": variant,
        "value": value,
        "series": series,
        "published": {} if published is None else {"SumR": published},
        "mean": {"SumR": float(np.mean(sums)) if sums else None},
        "std": {"SumR": float(np.std(sums, ddof=1)) if len(sums) > 1 else None},
        "failures": list(failures),
        "runs": [{"metrics": {"SumR": x}, "seed": k} for k, x in enumerate(sums)],
    }


def table(*rows, quantity=""):
    finished = sum(len(row["runs"]) for row in rows)
    return {
        "title": "Title", "quantity": quantity, "variants": list(rows),
        "finished": finished, "total": finished,
    }  # fmt: skip


def lines(axes):
    """x and y of every labelled line."""
    return {
        line.get_label(): tuple(np.asarray(x, float).tolist() for x in line.get_data())
        for line in axes.lines
        if not line.get_label().startswith("_")
    }


def records(epochs, zero=False):
    for step in range(4 * epochs):
        terms = {"loss/clip_nce": 5.0 / (step + 1), "loss/partial_order": 0.0 if zero else 0.01}
        yield {"step": step, "epoch": step // 4, "loss": 1.0 / (step + 1), **terms, "rate": 1.0}
        if step % 4 == 3:
            yield {"step": step, "epoch": step // 4, "validation/SumR": 100.0 - (step - 7) ** 2}
