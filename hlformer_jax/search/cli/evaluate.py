"""Commands on captions: evaluate, features."""

from hlformer_jax import files
from hlformer_jax.errors import SearchError, command_line, optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.index import extract_videos, prepare_index
from hlformer_jax.search.cli.options import (
    ENCODER,
    FOLDER,
    FPS,
    INDEX,
    NEW_ENCODER,
    NORMALISE,
    OVERWRITE,
    OWN_INDEX,
    WORK,
    Options,
    command,
    flag,
    option,
    path,
)
from hlformer_jax.search.evaluate import captions, metrics, threshold
from hlformer_jax.search.evaluate.features import tokens, write_features
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals import rankers

DEFAULT_TEXT_ENCODER = "FacebookAI/roberta-large"
"""Of the width of ActivityNet's and Charades-STA's published text features."""


@command(
    INDEX,
    path("--captions", 'lines {"video": …, "sentence": …, "start": …, "end": …}, times optional',
         required=True, metavar="FILE"),
    option("--split", "only captions of that split", choices=captions.SPLITS),
    path("--checkpoint", "a trained model as well; repeatable", action="append", default=[],
         metavar="RUN"),
    ENCODER, NORMALISE,
    option("--calibrate", "keep the level of a good match that calls so many percent of absent"
           " things good; 0: forget it", type=float, metavar="PERCENT"),
    path("--json", "also write the figures there", metavar="FILE"),
    OVERWRITE, compiles=True,
)  # fmt: skip
def evaluate(options: Options) -> None:
    """Report on captions: recalls and moments of each ranker, levels of a good match, by kind."""
    replace = files.replacing(options.overwrite)
    if options.json:
        console.check_place(options.json, "--json", Index.open(options.index))
        files.check_output(options.json, replace)
        if options.json.exists() and options.json.samefile(options.captions):
            raise SearchError(f"--json={options.json} is the file of the captions: name another")
    if options.calibrate and not 0.01 <= options.calibrate < 100:
        raise SearchError(f"--calibrate={options.calibrate:g}: give percent from 0.01 to 100, or 0")
    listed = captions.read(options.captions, options.split)
    # Loaded once: all rankers ask the same encoder.
    encoder = Library(options.index, encoder=options.encoder).encoder
    libraries = [
        Library(options.index, ranker=name, encoder=encoder, normalise=options.normalise)
        for name in rankers.RANKERS
    ]
    libraries += [Library(options.index, run, encoder=encoder) for run in options.checkpoint]
    total = len(listed) + sum(one.single for one in listed) * len(libraries)
    known = any(one.single and one.video for one in listed)
    with console.progress_bar("caption", total) as bar:
        done = {
            one.ranker_name: metrics.evaluate(one, listed, bar.update)
            for one in libraries if known
        }  # fmt: skip
        try:  # before questions by kind, whose good matches are those of the level
            if options.calibrate is not None:
                separations = {name: apart for name, (_, apart) in done.items()}
                threshold.calibrate(
                    console.open_index(options.index), separations, options.calibrate
                )
        finally:  # figures take long, and stay right where the level cannot be kept
            figures = metrics.report(libraries[0], done, listed, bar.update)
            bar.close()
            metrics.print_report(figures)
            if options.json:
                files.write_json(options.json, figures, replace)


@command(
    FOLDER,
    path("--captions", 'lines {"video": …, "sentence": …}, with "start", "end" and "split" where'
         ' known; with --text-only lines CAPTION_ID SENTENCE, or a file of moments; default all'
         ' of the collection',
         metavar="FILE"),
    path("--out", "where to write; with --text-only the file of the collection", metavar="DIR"),
    flag("--text-only",
         "only features of captions, in the released layout (docs/data.md): FOLDER is"
         f" the collection, such as PATH/charades, and the encoder {DEFAULT_TEXT_ENCODER} unless"
         " given"),
    OWN_INDEX, NEW_ENCODER, FPS,
    option("--seed", "of the splits, where the captions name none", type=int, default=0),
    OVERWRITE, *WORK, compiles=True,
)  # fmt: skip
def features(options: Options) -> None:
    """Make features of captioned videos, to train a model on (configs/own.py)."""
    from hlformer_jax.data import extracted

    if options.out is not None:
        console.check_place(options.out, "--out")
    if options.text_only:
        return _text_features(options)
    for name in ("captions", "out"):
        if getattr(options, name) is None:
            raise SearchError(f"--{name} is missing (only --text-only has a default for it)")
    if not options.folder.is_dir():
        raise SearchError(f"{options.folder} is no folder: give the folder of the videos")
    extracted.check_place(options.out, options.overwrite)
    listed = captions.read(options.captions)
    directory = options.index or options.folder / ".hlformer-search"
    index, encoder = prepare_index(directory, options.folder, options.encoder, options.fps)
    extract_videos(index, encoder, options)
    counts = write_features(
        index, encoder, listed, options.out, options.seed, console.report, options.overwrite
    )
    split_counts = ", ".join(f"{count} of {split}" for split, count in counts.items())
    print(f"{options.out}: captions {split_counts}")
    print(f"train on it: {command_line('main', f'--config=configs/own.py:{options.out}')}")


def _text_features(options: Options) -> None:
    """Writes the features of a released collection's captions."""
    from hlformer_jax.data import annotations, released, source

    folder = options.folder.resolve()
    collection = released.Collection(folder.parent, folder.name, "-", 0, 0)
    moments = released.MomentCollection(folder.parent, folder.name, "-", 0, 0)
    lists = [options.captions] if options.captions else [
        path for kind in (collection, moments) for path in map(kind.captions, source.SPLITS)
        if path.is_file()
    ]  # fmt: skip
    if not lists:
        raise SearchError(f"{collection.captions('train')} is not there: give lists of captions")
    out, replace = options.out or collection.text_features, files.replacing(options.overwrite)
    console.check_place(out, "--out")
    files.check_output(out, replace)
    sentences = annotations.read_sentences(lists)
    load = optional("hlformer_jax.encoders.hub", "search").load_text
    encoder = load(options.encoder or DEFAULT_TEXT_ENCODER, report=console.report)
    with console.progress_bar("caption", len(sentences)) as bar:
        features = tokens(encoder, sentences, bar.update)
        released.write_words(out, (encoder.name, encoder.fingerprint), features, replace)
    print(f"{out}: {len(sentences)} captions, features of width {encoder.token_width}")
