"""Commands that read captions: evaluate, features."""

from hlformer_jax import files, terminal
from hlformer_jax.cli import command_line
from hlformer_jax.errors import SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.index import extract_videos, prepare_index
from hlformer_jax.search.cli.options import (
    ENCODER,
    FOLDER,
    FPS,
    INDEX,
    NEW_ENCODER,
    NORMALISE,
    OPTIONAL_INDEX,
    OVERWRITE,
    WORK,
    Options,
    command,
    flag,
    option,
    path,
    seed,
)
from hlformer_jax.search.evaluate import captions, metrics, threshold
from hlformer_jax.search.evaluate.features import encode_tokens, write_features
from hlformer_jax.search.index import Index
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals import rankers

DEFAULT_TEXT_ENCODER = "FacebookAI/roberta-large"
"""Default encoder of captions. Its features have the same width as the published text features of
ActivityNet and Charades-STA."""


@command(
    INDEX,
    path("--captions", 'captions, one JSON object per line: {"video": …, "sentence": …, "start": …,'
         ' "end": …}; times are optional', required=True, metavar="FILE"),
    option("--split", "only captions of this split (default: all)", choices=captions.SPLITS),
    path("--checkpoint", "also evaluate this trained model (may be repeated)", action="append",
         default=[], metavar="RUN"),
    ENCODER, NORMALISE,
    option("--calibrate", "calibrate the match threshold for this false-alarm rate in percent, and"
           " store it in the index (0 removes it)", type=float, metavar="PERCENT"),
    path("--json", "also write all results to this JSON file", metavar="FILE"),
    OVERWRITE, compiles=True,
)  # fmt: skip
def evaluate(options: Options) -> None:
    """Report recalls, moments and match thresholds of each ranker on captions."""
    replace = files.replacing(options.overwrite)
    if options.json:
        console.check_place(options.json, "--json", Index.open(options.index))
        files.check_output(options.json, replace)
        if options.json.exists() and options.json.samefile(options.captions):
            raise SearchError(f"--json={options.json} is also --captions: choose another file")
    if options.calibrate and not 0.01 <= options.calibrate < 100:
        raise SearchError(
            f"--calibrate={options.calibrate:g}: give a percentage from 0.01 to below 100, or 0 to"
            " remove the threshold"
        )
    queries = captions.read(options.captions, options.split)
    changes = options.calibrate is not None
    index = (console.open_index_to_change if changes else console.open_index)(options.index)
    durations = {video: record.duration for video, record in index.videos.items() if record.indexed}
    queries = captions.cut_times(queries, durations, 1 / index.fps)
    # All rankers share one encoder.
    encoder = Library(options.index, encoder=options.encoder).encoder
    libraries = [
        Library(options.index, ranker=name, encoder=encoder, normalise=options.normalise)
        for name in rankers.RANKERS
    ]
    libraries += [Library(options.index, run, encoder=encoder) for run in options.checkpoint]
    total = len(queries) + sum(caption.is_visual for caption in queries) * len(libraries)
    can_rank = any(caption.is_visual and caption.video for caption in queries)
    with terminal.bar("caption", total) as bar:
        evaluated = {
            library.ranker_name: metrics.evaluate(library, queries, bar.update)
            for library in libraries if can_rank
        }  # fmt: skip
        try:  # before the report by kind, whose matches depend on the threshold
            if options.calibrate is not None:
                separations = {name: separation for name, (_, separation) in evaluated.items()}
                threshold.calibrate(index, separations, options.calibrate)
        finally:  # report the figures even if the threshold cannot be stored
            figures = metrics.report(libraries[0], evaluated, queries, bar.update)
            bar.close()
            metrics.print_report(figures)
            if options.json:
                files.write_json(options.json, figures, replace)
    if options.calibrate is not None:
        names = "; ".join(name for name in rankers.LABELS if name in evaluated)
        state = f"{options.calibrate:g} % false alarms ({names})" if options.calibrate else "none"
        terminal.show(f"calibrated match threshold of {index.directory}: {state}")


@command(
    FOLDER,
    path("--captions", 'captions, one JSON object per line: {"video": …, "sentence": …}, optionally'
         ' with "start", "end" and "split"; with --text-only lines CAPTION_ID SENTENCE, or a file'
         " of moments (default: all captions of the collection)", metavar="FILE"),
    path("--out", "folder for the features; with --text-only a file (default: the text features of"
         " the collection)", metavar="DIR"),
    flag("--text-only", "only encode captions, in the released layout (docs/data.md): FOLDER is the"
         f" collection, such as PATH/charades (default encoder: {DEFAULT_TEXT_ENCODER})"),
    OPTIONAL_INDEX, NEW_ENCODER, FPS,
    option("--seed", "seed of random splits, if the captions name none (default: 0)", type=seed,
           default=0),
    OVERWRITE, *WORK, compiles=True, continues=True,
)  # fmt: skip
def features(options: Options) -> None:
    """Extract features of captioned videos, to train a model on (configs/own.py)."""
    from hlformer_jax.data.sources import extracted

    if options.out is not None:
        console.check_place(options.out, "--out")
    if options.text_only:
        return _text_features(options)
    for name in ("captions", "out"):
        if getattr(options, name) is None:
            raise SearchError(f"--{name} is missing (it is optional only with --text-only)")
    if not options.folder.is_dir():
        raise SearchError(f"{options.folder} is not a folder: give the folder of the videos")
    extracted.check_place(options.out, options.overwrite)
    captioned = captions.read(options.captions)
    directory = options.index or options.folder / ".hlformer-search"
    index, encoder = prepare_index(
        directory, options.folder, options.encoder, options.fps, precision=options.precision
    )
    _check_precision(index, options.precision)
    extract_videos(index, encoder, options)
    counts = write_features(
        index, encoder, captioned, options.out, options.seed, terminal.warn, options.overwrite
    )
    split_counts = ", ".join(f"{count} of {split}" for split, count in counts.items())
    terminal.show(f"{options.out}: captions {split_counts}")
    terminal.show(f"train on it: {command_line('main', f'--config=configs/own.py:{options.out}')}")


def _check_precision(index: Index, precision: str | None) -> None:
    """Refuse a precision if the index, whose embeddings are the features, has another one."""
    precisions = index.precisions or ("float32",) * bool(index.contents())
    if precision and set(precisions) - {precision}:
        raise SearchError(
            f"--precision={precision}: {index.directory} has embeddings in"
            f" {' and '.join(precisions)}; leave out --precision, or create another index with"
            " --index"
        )


def _text_features(options: Options) -> None:
    """Write the features of the captions of a released collection."""
    from hlformer_jax.data.annotations.captions import read_sentences
    from hlformer_jax.data.sources import protocol
    from hlformer_jax.data.sources.released import hdf5, layouts

    for name in ("index", "fps", "workers", "precision", "timeout", "ray"):
        if getattr(options, name) is not None:
            raise SearchError(f"--{name} is for videos: leave it out with --text-only")
    folder = options.folder.resolve()
    collection = layouts.Collection(folder.parent, folder.name, "-", 0, 0)
    moments = layouts.MomentCollection(folder.parent, folder.name, "-", 0, 0)
    lists = [options.captions] if options.captions else [
        path for kind in (collection, moments) for path in map(kind.captions, protocol.SPLITS)
        if path.is_file()
    ]  # fmt: skip
    if not lists:
        raise SearchError(f"{collection.captions('train')} is missing: give --captions=FILE")
    out, replace = options.out or collection.text_features, files.replacing(options.overwrite)
    console.check_place(out, "--out")
    files.check_output(out, replace)
    sentences = read_sentences(lists)
    load = optional("hlformer_jax.encoders.hub", "search").load_text
    encoder = load(options.encoder or DEFAULT_TEXT_ENCODER, report=terminal.report)
    with terminal.bar("caption", len(sentences)) as bar:
        features = encode_tokens(encoder, sentences, bar.update)
        hdf5.write_words(out, (encoder.name, encoder.fingerprint), features, replace)
    width = encoder.token_width
    terminal.show(f"{out}: {len(sentences)} captions, features of width {width}")
