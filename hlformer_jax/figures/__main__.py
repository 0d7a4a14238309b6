"""Command line of figures: see the package's docstring."""

from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging

from hlformer_jax import command
from hlformer_jax.errors import UserError, suggestion

WORKDIR = flags.DEFINE_multi_string(
    "workdir", [], "Directory of a finished run; give it again to set several side by side."
)
OUT = flags.DEFINE_string("out", None, "Directory of the figures; default WORKDIR/figures.")
VIDEO = flags.DEFINE_multi_string("video", [], "Id of a video to show; may be given again.")
SPLIT = flags.DEFINE_enum("split", "test", ["train", "val", "test"], "Whose videos are shown.")
MOMENTS = flags.DEFINE_string(
    "moments", None, "Times of the captions' moments, in place of config.eval.moments."
)
MANUAL_DIR = flags.DEFINE_string("manual_dir", None, "Where the features are, if they were moved.")
DATA_DIR = flags.DEFINE_string("data_dir", None, "Where prepared data sets are, if moved.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of samples and projections.")

CHANGES = {"eval.moments": MOMENTS, "data.manual_dir": MANUAL_DIR, "data.data_dir": DATA_DIR}


def main(argv: Sequence[str]) -> int:
    """Draws the figure that is named; a wrong input is one line and exit status 1."""
    # Imported here so that --help answers without loading JAX.
    from hlformer_jax.figures import drawing, registry, report
    from hlformer_jax.training import finished

    known = [*registry.FIGURES, "report"]
    if len(argv) != 2:
        return command.fail(f"give the name of one figure: {', '.join(known)}")
    name = argv[1]
    if name not in known:
        near = suggestion(name, known)
        return command.fail(f"there is no figure {name!r}: use {', '.join(known)}{near}")
    if not WORKDIR.value:
        return command.fail("--workdir is missing: give the directory of a finished run")
    logging.set_verbosity(logging.WARNING)
    out = Path(OUT.value or Path(WORKDIR.value[0]) / "figures")
    options = drawing.Options(tuple(VIDEO.value), SPLIT.value, SEED.value)
    changes = {field: flag.value for field, flag in CHANGES.items() if flag.value is not None}
    try:
        runs = [finished.load(Path(path), changes) for path in WORKDIR.value]
        subjects = drawing.subjects(runs)
        if name == "report":
            written = report.write(subjects, options, out, lambda line: print(line, flush=True))
        else:
            drawing.write(registry.draw(name, subjects, options), out / name)
            written = out / f"{name}.png"
        print(written)
    except KeyboardInterrupt:
        return command.interrupted()
    except (UserError, OSError) as error:
        return command.fail(str(error))
    return 0


if __name__ == "__main__":
    app.run(main, flags_parser=command.parse)
