"""The error about a video: its file, its reason and its advice on one line."""

import errno
import pickle

import av
import pytest

from hlformer_jax import video
from hlformer_jax.errors import UserError
from hlformer_jax.video import errors


def test_an_error_can_be_sent_between_processes(tmp_path):
    with pytest.raises(video.VideoError) as error:
        video.probe(tmp_path / "a.mp4")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_a_fault_is_one_line_whatever_the_file_is_called():
    error = errors.fault("a\nb.mp4", "is empty", "delete it")
    assert str(error) == "'a\\nb.mp4' is empty: delete it"
    assert isinstance(error, UserError) and isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (FileNotFoundError(2, "No such file"), "is not there any more"),
        (PermissionError(13, "Permission denied"), "may not be read"),
        (MemoryError(), "does not fit into memory"),
        (av.error.InvalidDataError(1, "invalid"), "is no video that FFmpeg knows"),
        (av.error.DecoderNotFoundError(1, "none"), "has a codec that FFmpeg cannot decode"),
        (OSError(errno.EIO, "Input/output\n error"), "cannot be read (Input/output error)"),
        (OSError(), "cannot be read (OSError)"),
    ],
)
def test_reasons_of_ffmpeg_and_of_the_disk_are_told_in_words(error, what):
    with pytest.raises(video.VideoError) as told, errors.named("a.mp4"):
        raise error
    assert str(told.value).startswith(f"'a.mp4' {what}")
    assert told.value.__cause__ is error and "\n" not in str(told.value)


def test_an_error_that_has_its_line_already_and_one_of_the_program_stay_as_they_are():
    for error in (errors.fault("b.mp4", "is empty", "delete it"), ZeroDivisionError()):
        with pytest.raises(type(error)) as raised, errors.named("a.mp4"):
            raise error
        assert raised.value is error
