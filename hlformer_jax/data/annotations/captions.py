"""Caption lists, and the sentences of caption lists and files of moments."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hlformer_jax.data.annotations.moments import read_moments
from hlformer_jax.data.annotations.parsing import read_lines
from hlformer_jax.data.sources.protocol import Caption, Captions, DataError


def read_captions(path: str | Path) -> dict[str, tuple[Caption, ...]]:
    """Read a caption list, with CAPTION_ID SENTENCE on each line.

    The part of a caption's id before the first # is the video's id. Videos and captions are in
    order of first appearance. A DataError names the first line that is not a caption.
    """
    videos: dict[str, list[Caption]] = {}
    lines: dict[str, int] = {}
    for number, (where, line) in enumerate(read_lines(path), 1):
        caption_id, _, sentence = line.strip().partition(" ")
        video, _, rest = caption_id.partition("#")
        wrong = None
        if "\r" in line:
            wrong = "contains a carriage return; remove it"
        elif not (video and rest):
            wrong = (
                f"begins with {caption_id!r}, which is not a caption id (VIDEO#...): the id"
                " of its video is empty or contains a blank, or the line before was broken"
                " in two; correct it"
            )
        elif len(caption_id.split()) > 1 or "/" in caption_id or "\0" in caption_id:
            wrong = f"caption id {caption_id!r} contains a '/', a zero byte or a blank; rename it"
        elif not sentence:
            wrong = f"caption {caption_id!r} has no sentence; add one, or remove the line"
        elif caption_id in lines:
            wrong = (
                f"caption id {caption_id!r} is also in line {lines[caption_id]}; remove one of them"
            )
        if wrong:
            raise DataError(f"{where}: {wrong}")
        lines[caption_id] = number
        caption = Caption(caption_id, sentence.lstrip(), line=number)
        videos.setdefault(video, []).append(caption)
    return {video: tuple(captions) for video, captions in videos.items()}


def check_shared_ids(splits: Mapping[str, Captions], place: Callable[[str], Path]) -> None:
    """Check that no id has two sentences, because an id has one set of features.

    Args:
      splits: the captions of every split.
      place: function that returns the caption file of a split.

    Raises:
      DataError: if an id has two sentences; the message names the caption and both splits.
    """
    sentences: dict[str, tuple[str, str]] = {}
    for split, videos in splits.items():
        for caption in (caption for captions in videos.values() for caption in captions):
            name, sentence = caption.caption_id, " ".join(caption.sentence.split())
            first, known_sentence = sentences.setdefault(name, (split, sentence))
            if known_sentence != sentence:
                raise DataError(
                    f"{place(split)}:{caption.line}: caption {name!r} has another sentence in"
                    f" the split {first}, but one id can have features of one sentence only;"
                    " give the captions of one split other ids (for moments: python -m"
                    " hlformer_jax.data.moments --tag=TAG) and compute their features"
                )


def read_sentences(paths: Sequence[str | Path]) -> dict[str, str]:
    """Return the sentences of caption lists and files of moments by their ids.

    The same id may stand in several files if its sentence is the same up to white space; the text
    of the first file is returned.

    Args:
      paths: lists of CAPTION_ID SENTENCE, and files of moments, whose names end in .jsonl.

    Raises:
      DataError: if a file is faulty, or two files have different sentences for one id.
    """
    sentences: dict[str, str] = {}
    for path in map(Path, paths):
        for name, sentence, line in _listed_sentences(path):
            if sentences.setdefault(name, sentence).split() != sentence.split():
                raise DataError(
                    f"{path}:{line}: caption {name!r} has another sentence in another file;"
                    " rename one of them (for moments: python -m hlformer_jax.data.moments"
                    " --tag=TAG)"
                )
    return sentences


def _listed_sentences(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the id, the sentence and the line of every caption or moment of a file."""
    if path.suffix == ".jsonl":
        for video, line in read_moments(path):
            for moment in video.moments:
                yield moment.moment_id, " ".join(moment.text.split()), line
    else:
        for captions in read_captions(path).values():
            for caption in captions:
                yield caption.caption_id, caption.sentence, caption.line
