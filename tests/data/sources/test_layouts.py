"""Collections in released layouts: their files, which are read but never run, and their faults."""

import ast
import dataclasses
import os
import random
import re
import tracemalloc
import warnings

import corpora
import h5py
import numpy as np
import pytest
from corpora import assert_refused, edit, feature, line, read_all, warnings_of

from hlformer_jax.config import default
from hlformer_jax.data.dataset import open_data
from hlformer_jax.data.prepared import prepare
from hlformer_jax.data.sources.protocol import DataError, MissingSourceError, teacher_width
from hlformer_jax.data.sources.released.frame_lists import read_frame_lists
from hlformer_jax.data.sources.released.layouts import Collection

V2F = "video2frames.txt"


@pytest.mark.parametrize("name", ["../../x", "", "..", "a/b", "a\nb"])
def test_collection_must_name_a_single_folder(tmp_path, name):
    for names, field in (((name, "i3d"), "collection"), (("tvr", name), "feature")):
        with pytest.raises(DataError, match=f"data.{field} "):
            Collection(tmp_path, *names, 6, 5)


def test_missing_file_is_named_with_its_origin(tiny, write):
    collection = _teach(write(tiny))
    names = [str(path.relative_to(collection.root)) for path in collection.files()]
    assert len(names) == 10
    for path, name in zip(collection.files(), names, strict=True):
        content = path.read_bytes()
        path.unlink()
        publisher = "DL-DKD" if "clip" in name else "MS-SL"
        with pytest.raises(DataError, match=f"{name}.*{publisher}"):
            collection.open()
        path.write_bytes(content)
    collection.root.rename(collection.root.with_name("elsewhere"))
    unset = dataclasses.replace(collection, manual_dir="")
    for source, reason in ((collection, "does not exist"), (unset, "data.manual_dir is not set")):
        with pytest.raises(MissingSourceError, match=f"{reason}.*MS-SL") as error:
            source.open()
        assert all(name in str(error.value) for name in names)


def test_link_and_folder_in_place_of_a_file_are_named(tiny, write, tmp_path):
    collection = write(tiny)
    path = collection.text_features
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="hdf5: a link to .*gone, which is no file: .*MS-SL"):
        collection.fingerprint()
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="hdf5: a folder, but must be a file: .*MS-SL"):
        collection.fingerprint()


def test_fingerprint_follows_the_files(tiny, write):
    plain = write(tiny)
    collection = _teach(plain)
    before = collection.fingerprint()
    assert before not in (plain.fingerprint(), "")
    assert before == dataclasses.replace(collection, visual_dim=7).fingerprint()
    edit(collection.teacher_frames, lambda data: data + b"more")
    after = collection.fingerprint()
    edit(collection.captions("train"), lambda data: data.replace(b"thing", b"THING"))
    assert len({before, after, collection.fingerprint()}) == 3


def test_shuffled_rows_are_read_in_time_order(tiny, write):
    with write(tiny).open() as reader:
        for split, captions in tiny.captions.items():
            listed = [c.caption_id for cs in reader.splits[split].values() for c in cs]
            assert listed == [caption for caption, _ in captions]
            assert list(reader.splits[split]) == list(
                dict.fromkeys(v for v in tiny.frames if v.startswith(split))
            )
        for video, frames in tiny.frames.items():
            read = reader.read_frames(video)
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read, frames)
        for caption, words in tiny.words.items():
            np.testing.assert_array_equal(reader.read_words(caption), words)


def test_videos_are_ordered_by_first_caption(tiny, write):
    tiny.captions["train"] = [tiny.captions["train"][k] for k in (3, 0, 5, 1, 4, 2, 6)]
    with write(tiny).open() as reader:
        captions = {v: [c.caption_id for c in cs] for v, cs in reader.splits["train"].items()}
    assert captions == {
        "train_2": ["train_2#enc#0", "train_2#enc#2", "train_2#enc#1"],
        "train_0": ["train_0#enc#0"],
        "train_1": ["train_1#enc#0", "train_1#enc#1"],
        "train_3": ["train_3#enc#0"],
    }


def test_frames_of_videos_without_captions_need_no_rows(tiny, write):
    collection = write(tiny)
    assert warnings_of(collection) == []
    edit(collection.feature_dir / V2F, lambda d: d[:-1] + b", 'left': ['left_0'], 'out': []}")
    [message] = warnings_of(collection)
    assert "2 videos without a caption" in message and V2F in message and "'left'" in message


def test_frames_of_two_videos_cause_a_warning(tiny, write):
    collection = write(tiny)
    edit(collection.feature_dir / V2F, lambda d: d.replace(b"'train_1_0'", b"'train_0_0'"))
    [message] = warnings_of(collection)
    assert V2F in message and "1 frame in" in message and "'train_0' and 'train_1'" in message


def test_caption_id_with_two_sentences_is_refused(tiny, write):
    tiny.captions["test"].append(("train_1#enc#0", "another sentence"))
    collection = write(tiny)
    with pytest.raises(DataError, match=r"tinytest.*'train_1#enc#0'.*in the split train.*--tag"):
        collection.open()
    first = dict(tiny.captions["train"])["train_1#enc#0"].encode()
    edit(collection.captions("test"), lambda data: data.replace(b"another sentence", first))
    with collection.open() as reader:  # the same sentence may stand in several splits
        assert "train_1" in reader.splits["test"]


# id.txt and video2frames.txt


BIN = "feature.bin"


def recode(data, dtype):
    return np.frombuffer(data, "<f4").astype(dtype).tobytes()


def sub(old, new):
    return lambda data: re.sub(old, new, data)


FRAME_FAULTS = [
    (V2F, sub(b"'train_2':", b"'train_9':"), ["tinytrain.caption.txt:4", "'train_2'"]),
    (
        V2F,
        sub(rb"('train_2': )\[.*?\]", rb"\1[]"),
        ["'train_2'", "no frames", "tinytrain.caption.txt:4"],
    ),
    ("id.txt", sub(rb" \S+\Z", b""), ["names 23 rows", "24"]),
    ("id.txt", sub(rb"\btrain_1_0\b", b"train_1_1"), ["'train_1_1'", "twice"]),
    (V2F, sub(b"'train_2_1'", b"'train_2_99'"), ["'train_2_99'", "'train_2'", "id.txt"]),
    (V2F, lambda d: d[: len(d) // 2], [f"{V2F}:1:", "expected"]),
    (V2F, sub(rb"\['train_0_0'\]", b"('train_0_0')"), ["not a list"]),
    (BIN, lambda d: d + d[:12], ["12 bytes too long", "shape.txt"]),
    (BIN, lambda d: recode(d, ">f4"), ["big-endian"]),
    (BIN, lambda d: bytes(len(d)), ["is zero"]),
    ("shape.txt", lambda d: b"24 6 1\n", ["shape.txt:1", "24 6 1", "ROWS WIDTH"]),
    ("shape.txt", lambda d: b"12 12\n", ["shape.txt:1", "12 wide", "says 6", "data.visual_dim"]),
]


@pytest.mark.parametrize(("name", "change", "expected"), FRAME_FAULTS)
def test_bad_file_of_frames_is_refused(tiny, write, name, change, expected):
    assert_refused(write(tiny), feature(name, change), [name, *expected])


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-8"])
def test_names_beyond_ascii_are_read(tiny, write, encoding):
    # In UTF-8, à ends in a byte that is a blank in ISO-8859-1.
    collection = write(tiny)
    for name, code in (("id.txt", encoding), ("video2frames.txt", "utf-8")):
        edit(
            collection.feature_dir / name,
            lambda data, code=code: data.decode().replace("train_3_", "éà_").encode(code),
        )
    with collection.open() as reader:
        np.testing.assert_array_equal(reader.read_frames("train_3"), tiny.frames["train_3"])


def test_names_may_stand_in_lines_and_in_tuples(tiny, write):
    collection = write(tiny)
    edit(collection.feature_dir / "id.txt", lambda data: data.replace(b" ", b"\r\n"))
    lists = {
        video: tuple(f"{video}_{k}" for k in range(len(x))) for video, x in tiny.frames.items()
    }
    text = repr(lists).replace("), ", "),\n ").replace("', '", "' ,\t'")
    (collection.feature_dir / V2F).write_text("\n" + text + "\n")
    with collection.open() as reader:
        for video, frames in tiny.frames.items():
            np.testing.assert_array_equal(reader.read_frames(video), frames)


def test_unterminated_string_takes_no_memory_beyond_the_file(tmp_path):
    path = tmp_path / V2F
    path.write_bytes(b"{'train_0': ['" + b"x" * 4_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="expected"):
            read_frame_lists(path, {})
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_expression_in_frame_lists_is_refused_and_not_run(tiny, write, tmp_path):
    collection = write(tiny)
    trace = tmp_path / "ran"
    planted = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    path = collection.feature_dir / V2F
    sound = path.read_text()
    for text in (planted, sound[:-1] + f", 'x': {planted}}}", sound[:-1] + f", 'x': [{planted}]}}"):
        path.write_text(text)
        with pytest.raises(DataError, match="code"):
            collection.open()
    assert not trace.exists()


def test_frame_lists_are_read_as_python_reads_them(tmp_path):
    rng = random.Random(0)
    pieces = ["back\\slash", *"a b_1 v[1] it's q\"q ] ( é 日本 , : } x#y '".split()]
    names = [first + second for first in pieces for second in pieces]
    row_of = {name: row for row, name in enumerate(names)}
    path = tmp_path / V2F
    read, refused = 0, 0
    for _ in range(1000):
        lists = {
            rng.choice(names): rng.choice((list, tuple))(rng.choices(names, k=rng.randint(0, 4)))
            for _ in range(rng.randint(0, 3))
        }
        text = repr(lists)
        if rng.random() < 0.5:  # an edited text must be read as Python reads it, or be refused
            at = rng.randrange(len(text))
            text = (
                text[:at] + rng.choice(["", *"'\"[](){},:\\ \n1#"]) + text[at + rng.randint(0, 1) :]
            )
        path.write_text(text)
        try:
            rows_of_video = read_frame_lists(path, row_of)
        except DataError:
            refused += 1
            assert text != repr(lists)
            continue
        read += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            expected = {video: list(frames) for video, frames in ast.literal_eval(text).items()}
        assert {v: [names[row] for row in rows] for v, rows in rows_of_video.items()} == expected
    assert read > 500 and refused > 160


# HDF5


def _replace(file, caption, value):
    del file[caption]
    if value is not None:
        file[caption] = value


def _nest(file):
    for name in list(file):
        file.move(name, f"all/{name}")


def _low_level(file, dtype=h5py.h5t.IEEE_F32LE, shape=(3, 5), **properties):
    """Replace a caption's dataset by an unwritten one of this shape and storage."""
    del file[NAME]
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for name, value in properties.items():
        getattr(creation, name)(*value)
    space = h5py.h5s.create(h5py.h5s.NULL) if shape is None else shape
    if isinstance(space, tuple):
        most = tuple(h5py.h5s.UNLIMITED if "set_chunk" in properties else n for n in space)
        space = h5py.h5s.create_simple(space, most)
    h5py.h5d.create(file.id, NAME.encode(), dtype, space, creation)


def _chunked(file, chunks, values):
    """Write some values of three words in chunks."""
    del file[NAME]
    data = file.create_dataset(NAME, (3, 5), "f4", chunks=chunks, maxshape=(None, 5))
    data[: len(values)] = values


NAME = "val_1#enc#1"
HDF5_FAULTS = [
    (lambda f: _replace(f, NAME, np.zeros(5, "f4")), "(5,)"),
    (lambda f: _replace(f, NAME, np.zeros((0, 5), "f4")), "no words"),
    (
        lambda f: _replace(f, NAME, np.zeros((3, 7), "f4")),
        "7 wide, but the configuration says 5; those of 'train_0#enc#0' are 5 wide",
    ),
    (lambda f: _replace(f, NAME, np.zeros((3, 5), "i8")), "int64"),
    (lambda f: f.move(NAME, "x") or f.move("x", f"{NAME}/feat"), "group"),
    (lambda f: _low_level(f, shape=(2**40, 5), set_chunk=((1000, 5),)), "1099511627776 words"),
    (lambda f: _low_level(f), "or only partly, written"),
    (lambda f: _low_level(f, set_external=(b"/dev/zero", 0, 60)), "another file"),
    (lambda f: _chunked(f, (2**18, 5), np.ones((3, 5), "f4")), "chunks of (262144, 5)"),
    (lambda f: _replace(f, NAME, h5py.ExternalLink("/dev/zero", "x")), "are a link"),
]


@pytest.mark.parametrize(("change", "expected"), HDF5_FAULTS)
def test_bad_hdf5_dataset_is_refused(tiny, write, change, expected):
    assert_refused(write(tiny), corpora.words(change), [".hdf5", f"'{NAME}'", expected])


def _widen(file):
    for name in list(file):
        _replace(file, name, np.ones((3, 7), "f4"))


FILE_FAULTS = [
    (lambda c: edit(c.text_features, lambda d: d[:2000] + bytes(len(d) - 2000)), ["damaged"]),
    (lambda c: c.text_features.write_bytes(b"version https://git"), ["HDF5"]),
    (
        lambda c: edit(c.captions("train"), line(3, b"train_1#dec#1 a person")),
        ["tinytrain.caption.txt:3", "'train_1#dec#1'", "no features"],
    ),
    (
        corpora.words(_widen),
        ["'train_0#enc#0'", "7 wide, but the configuration says 5; set data.text_dim to 7"],
    ),
    (corpora.words(_nest), ["'train_0#enc#0'", "no features", "top level"]),
]


@pytest.mark.parametrize(("fault", "expected"), FILE_FAULTS)
def test_bad_file_of_words_is_refused(tiny, write, fault, expected):
    assert_refused(write(tiny), fault, ["roberta_tiny_query_feat.hdf5", *expected])


def test_float16_text_of_a_hundred_words_is_read(tiny, write):
    tiny.words["val_0#enc#0"] = np.random.default_rng(2).normal(size=(100, 5)).astype(np.float16)
    with write(tiny).open() as reader:
        words = reader.read_words("val_0#enc#0")
    assert words.dtype == np.float32
    np.testing.assert_array_equal(words, tiny.words["val_0#enc#0"])


@pytest.mark.parametrize("name", ["val_1#enc#1", "other"])
def test_hdf5_link_to_a_pipe_is_not_opened(tiny, write, tmp_path, name):
    collection = write(tiny)
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(collection.text_features, "r+") as file:
        del file["val_1#enc#1"]
        file[name] = h5py.ExternalLink(str(tmp_path / "pipe"), "x")
    with pytest.raises(DataError, match="are a link|has no features"):
        read_all(collection)


# The teacher


WIDTH = 4


def _teach(collection):
    """Add a teacher's files for the training split, as published, beside the released files."""
    taught = dataclasses.replace(collection, teacher_dim=WIDTH)
    rng = np.random.default_rng(3)
    lines = taught.captions("train").read_text().splitlines()
    ids = [line.split(" ", 1)[0] for line in lines]
    with h5py.File(taught.teacher_captions, "w") as file:
        for row, name in enumerate(ids):  # both forms, and both shapes
            vector = rng.normal(size=(1, WIDTH)).astype("f4" if row % 2 else "f2")
            name = name.replace("#enc#", "#") if row == 1 else name
            file[name] = vector[0] if row == 2 else vector
    with h5py.File(taught.teacher_frames, "w") as file:
        for row, video in enumerate(dict.fromkeys(name.split("#")[0] for name in ids)):
            file[video] = rng.normal(size=(2 + 3 * row, WIDTH)).astype("f4")
    return taught


def test_teacher_is_read_and_prepared(tiny, write, tmp_path):
    collection = _teach(write(tiny))
    assert teacher_width(collection) == WIDTH
    with collection.open() as reader, h5py.File(collection.teacher_frames) as frames:
        ids = [caption.caption_id for caption in reader.splits["train"]["train_1"]]
        teacher = reader.read_teacher("train_1", ids)
        np.testing.assert_array_equal(teacher.frames, frames["train_1"])
        assert teacher.captions.shape == (len(ids), WIDTH)
        assert teacher.frames.dtype == teacher.captions.dtype == np.float32
    train = prepare(collection, tmp_path / "out").split("train")
    record = train[train.video_ids.index("train_1")]
    assert (record.teacher_frames == teacher.frames).all()
    assert (record.teacher_captions == teacher.captions).all()
    plain = prepare(collection, tmp_path / "out").split("val")[0]
    assert plain.teacher_frames is None and plain.teacher_captions is None


def _change(path, name, value):
    """Return a fault that replaces the features of an item in an HDF5 file; None removes them."""

    def fault(collection):
        with h5py.File(getattr(collection, path), "r+") as file:
            _replace(file, name, value)

    return fault


TEACHER_FAULTS = {
    "video_missing": (
        _change("teacher_frames", "train_2", None),
        ["tinytrain.caption.txt:4", "video 'train_2'", "no features", "vid_features.hdf5"],
    ),
    "caption_missing": (
        _change("teacher_captions", "train_0#enc#0", None),
        ["tinytrain.caption.txt:1", "caption 'train_0#0'", "no features", "query_feat.hdf5"],
    ),
    "caption_of_two_vectors": (
        _change("teacher_captions", "train_0#enc#0", np.ones((2, WIDTH), "f4")),
        ["caption 'train_0#enc#0'", "2 vectors, more than the limit of 1"],
    ),
    "video_of_zeros": (
        _change("teacher_frames", "train_2", np.zeros((3, WIDTH), "f4")),
        ["vid_features.hdf5: the teacher's frames of video 'train_2': all values are zero"],
    ),
}


@pytest.mark.parametrize("fault", TEACHER_FAULTS)
def test_fault_of_a_teacher_is_refused_with_its_place(tiny, write, fault):
    assert_refused(_teach(write(tiny)), *TEACHER_FAULTS[fault])


# MSC's layout


@pytest.mark.parametrize(("name", "start"), [("tvr", ""), ("tvr", "v_"), ("activitynet", "v_")])
def test_clip_features_are_read_by_video_and_caption(tiny, tmp_path, name, start):
    tiny.frames = {start + video: frames for video, frames in tiny.frames.items()}
    tiny.words = {start + caption: words for caption, words in tiny.words.items()}
    for split, captions in tiny.captions.items():
        tiny.captions[split] = [(start + caption, sentence) for caption, sentence in captions]
    collection = tiny.write_clip(tmp_path, name)
    with h5py.File(collection.video_features) as file:
        assert ("v_train_0" in file) == (name == "tvr" and start == "v_")
    with collection.open() as reader:
        assert list(reader.splits["test"]) == list(reader.splits["val"])
        assert list(reader.splits["train"]) == [v for v in tiny.frames if "train" in v]
        for video, frames in tiny.frames.items():
            if "test" in video:  # the layout has no list of them
                continue
            assert reader.num_frames(video) == len(frames)
            np.testing.assert_array_equal(reader.read_frames(video), frames)
        for captions in tiny.captions["train"], tiny.captions["val"]:
            for caption, _ in captions:
                np.testing.assert_array_equal(reader.read_words(caption), tiny.words[caption])


# DreamPRVR's, DL-DKD's and UEM's layouts


def _assert_read(collection, tiny, words):
    """Assert that a collection has the frames and, of every caption, `words` of its rows."""
    with collection.open() as reader:
        for video, frames in tiny.frames.items():
            read = reader.read_frames(video)
            assert reader.num_frames(video) == len(frames) and read.dtype == np.float32
            np.testing.assert_array_equal(read, frames)
        for caption, rows in tiny.words.items():
            assert reader.num_words(caption) == len(words(rows))
            np.testing.assert_array_equal(reader.read_words(caption), words(rows))


def test_hdf5_frames_equal_the_released_files(tiny, tmp_path):
    collection = tiny.write_hdf5(tmp_path)
    _assert_read(collection, tiny, lambda rows: rows)
    assert collection.fingerprint() == dataclasses.replace(collection).fingerprint()
    (collection.feature_dir / "feature.bin").touch()
    with pytest.raises(DataError, match="both|which is meant"):
        collection.open()


@pytest.mark.parametrize("feature", ["clip_B32", "clip_B32_ours", "clip_B32_ours_word"])
def test_clip_b32_feature_name_selects_sentences_or_tokens(tiny, tmp_path, feature):
    collection = tiny.write_b32(tmp_path, feature)
    end = feature.removeprefix("clip_B32")
    assert collection.text_features.name == f"clip_ViT_B_32_tiny_query_feat{end}.hdf5"
    _assert_read(collection, tiny, lambda rows: rows if "word" in feature else rows[-1:])


@pytest.mark.parametrize(
    ("write", "fault", "expected"),
    [
        (
            "write_clip",
            _change("video_features", "train_1", None),
            ["tinytrain.caption.txt:2", "video 'train_1'"],
        ),
        (
            "write_clip",
            _change("video_features", "train_1", np.ones((3, 8), np.float32)),
            ["video 'train_1'", "8 wide", "those of 'train_0' are 6 wide"],
        ),
        (
            "write_clip",
            _change("video_features", "train_2", np.full((2, 6), np.nan, np.float32)),
            ["tiny_clip_L14.h5", "frame 0 of video 'train_2'"],
        ),
        (
            "write_clip",
            lambda c: c.video_features.unlink(),
            ["FeatureData", "no such file", "MSC"],
        ),
        (
            "write_hdf5",
            _change("video_features", "train_1", None),
            ["feature.hdf5", "video 'train_1'"],
        ),
        (
            "write_hdf5",
            _change("video_features", "train_2", np.full((2, 6), 1e300)),
            ["feature.hdf5", "frame 0 of video 'train_2' holds 1e+300, which is beyond"],
        ),
        (
            "write_hdf5",
            _change("video_features", "train_2", np.full((2, 6), -np.inf)),
            ["feature.hdf5", "frame 0 of video 'train_2' holds -inf"],
        ),
        ("write_hdf5", lambda c: c.video_features.unlink(), ["feature.bin", "no such file"]),
        ("write_b32", _change("text_features", "train_0#enc#0", None), ["'train_0#0'", "no feat"]),
        ("write_b32", lambda c: c.text_features.unlink(), ["query_feat.hdf5", "UEM"]),
        ("write_b32", lambda c: c.captions("val").unlink(), ["tinyval.caption.txt", "MS-SL"]),
    ],
)
def test_faults_of_every_layout_are_refused(tiny, tmp_path, write, fault, expected):
    assert_refused(getattr(tiny, write)(tmp_path), fault, expected)


def test_clip_features_are_opened_by_feature_name(tiny, tmp_path):
    del tiny.captions["test"]
    collection = tiny.write_clip(tmp_path / "manual")
    config = default()
    config.data.update(collection="tiny", feature="clip_L14", visual_dim=6, text_dim=5)
    config.data.update(manual_dir=str(tmp_path / "manual"), data_dir=str(tmp_path / "prepared"))
    data = open_data(config)
    assert data.fingerprint == collection.fingerprint()
    assert data.val.video_ids == data.test.video_ids == ("val_0", "val_1")
    for index, video in enumerate(data.train.video_ids):
        frames = tiny.frames[video]
        unit = frames / (np.linalg.norm(frames, axis=-1, keepdims=True) + 1e-5)
        # Stored as float16, whose significand has 11 bits.
        np.testing.assert_allclose(data.train[index].frames, unit, atol=1e-3)
