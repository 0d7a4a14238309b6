"""Command line of figures.

    python -m hlformer_jax.figures NAME --workdir=RUN [--workdir=OTHER ...] [--out=DIR]
    python -m hlformer_jax.figures curves --workdir=DIR

NAME is a figure of a trained model, or `report`: a page with all figures that apply. Several runs
on the same data are drawn side by side. The command writes NAME.png, NAME.svg and NAME.csv with the
numbers into DIR (default: RUN/figures). `curves` redraws the curves of a run in its place, or a
sweep with the curves of its runs. docs/figures.md describes each figure.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from hlformer_jax import cli, terminal
from hlformer_jax.errors import UserError, describe
from hlformer_jax.text import suggestion

WORKDIR = flags.DEFINE_multi_string(
    "workdir", [], "Directory of a finished run; several runs are shown side by side"
)
OUT = flags.DEFINE_string("out", None, "Directory for the figures (default: WORKDIR/figures).")
OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace existing figures.")
VIDEO = flags.DEFINE_multi_string("video", [], "Id of a video to show")
SPLIT = flags.DEFINE_enum(
    "split", "test", ["train", "val", "test"], "Split whose videos are shown."
)
MOMENTS = flags.DEFINE_string(
    "moments",
    None,
    "File with the times of the captions' moments, used instead of config.eval.moments.",
)
MANUAL_DIR = flags.DEFINE_string(
    "manual_dir", None, "Directory of the features, if they were moved."
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Directory of the prepared data sets, if they were moved."
)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the samples and projections.", lower_bound=0)
flags.declare_key_flag("quiet")

CHANGES = {"eval.moments": MOMENTS, "data.manual_dir": MANUAL_DIR, "data.data_dir": DATA_DIR}

PLACES = dict.fromkeys(
    "out video split moments manual_dir data_dir seed".split(), ("figures of a trained model",)
)
"""Flags that have no effect on curves."""


def main(argv: Sequence[str]) -> int:
    """Draw a figure and return the exit status; wrong input is reported in one line, status 1."""
    try:
        if argv[1:] == ["curves"]:
            return _curves()
        return _figure(argv[1:])
    except KeyboardInterrupt:
        return cli.interrupted()
    except (UserError, OSError) as error:
        return cli.fail(describe(error))


def _curves() -> int:
    from hlformer_jax import files
    from hlformer_jax.figures import curves

    if misplaced := cli.misplaced_flag(PLACES, "curves"):
        return cli.fail(misplaced)
    if not WORKDIR.value:
        return cli.fail("--workdir is missing: give the directory of a run or a sweep")
    for directory in WORKDIR.value:
        print(curves.draw(Path(directory), files.replacing(OVERWRITE.value, listed=True)))
    return 0


def _figure(names: Sequence[str]) -> int:
    # Imported here, so that --help and `curves` do not load JAX.
    from hlformer_jax import files
    from hlformer_jax.figures import corpus, drawing, report
    from hlformer_jax.training import loaded_run

    figures = [*report.FIGURES, "report", "curves"]
    if len(names) != 1:
        return cli.fail(f"give the name of one figure: {', '.join(figures)}")
    [name] = names
    if name not in figures:
        closest = suggestion(name, figures)
        return cli.fail(f"the figure {name!r} is unknown: use {', '.join(figures)}{closest}")
    if not WORKDIR.value:
        return cli.fail("--workdir is missing: give the directory of a finished run")
    out = Path(OUT.value or Path(WORKDIR.value[0]) / "figures")
    # Figures in the default folder RUN/figures are replaced; files in a folder of --out are not.
    replace = files.replacing(OVERWRITE.value, listed=OUT.value is None)
    if OUT.value or out.is_dir():
        report.check_place(name, out, replace)
    options = corpus.Options(tuple(VIDEO.value), SPLIT.value, SEED.value)
    changes = {field: flag.value for field, flag in CHANGES.items() if flag.value is not None}
    runs = [loaded_run.load(Path(path), changes) for path in WORKDIR.value]
    subjects = corpus.subjects(runs)
    if name == "report":
        print(report.write(subjects, options, out, terminal.show, replace))
        return 0
    drawn = report.draw(name, subjects, options)
    drawing.write(drawn.figure, out / name, drawn.table, replace)
    print(out / f"{name}.png")
    return 0


def program() -> None:
    """Run the console command hlformer-figures."""
    cli.run_program(main)


if __name__ == "__main__":
    program()
