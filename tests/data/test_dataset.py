"""The data set of a configuration: source, splits, chosen trees; every layout is trained on."""

import contextlib
import functools
import json

import corpora
import numpy as np
import pytest
from processes import ROOT

from hlformer_jax.config import default, load
from hlformer_jax.data import dataset, trees
from hlformer_jax.data.annotations.moments import (
    AnnotatedMoment,
    TimedVideo,
    moments_to_json,
    write_moments,
)
from hlformer_jax.data.dataset import choose_source, open_data, open_trees
from hlformer_jax.data.sources import synthetic
from hlformer_jax.data.sources.protocol import SPLITS, Caption, DataError, Reader, Source, digest
from hlformer_jax.data.sources.released.layouts import Collection
from hlformer_jax.training import loop


def test_another_corpus_is_another_data_set(config, data):
    config = config.copy_and_resolve_references()
    config.data.synthetic_videos = (5, 3, 4)
    smaller = dataset.open_data(config)
    assert len(smaller.train) == 5
    assert smaller.fingerprint != data.fingerprint


def test_width_other_than_the_configured_one_is_refused(config):
    config = config.copy_and_resolve_references()
    config.data.text_dim = 7
    source = synthetic.Corpus(visual_dim=6, text_dim=2)
    with pytest.raises(DataError, match="data.text_dim"):
        open_data(config, source)


def test_a_configuration_names_its_source(monkeypatch):
    config = default()
    config.data.update(manual_dir="", synthetic_videos=(3, 1, 1), collection="mine")
    assert isinstance(choose_source(config.data), synthetic.Corpus)
    config.data.manual_dir = "there"
    assert isinstance(choose_source(config.data), Collection)
    source = synthetic.Corpus()
    monkeypatch.setitem(dataset.SOURCES, "mine", lambda data: source)
    assert choose_source(config.data) is source


class Attributes(Source, Reader):
    """A user's data set, which sets its attributes in `__init__`."""

    def __init__(self, faulty=False):
        self.name, self.feature, self.visual_dim, self.text_dim = "mine", "random", 6, 4
        self.splits = {
            split: {f"{split}{k}": [Caption(f"{split}{k}#0", "x")] for k in range(2)}
            for split in SPLITS
        }
        self.faulty = faulty

    def fingerprint(self):
        return digest(self.name, self.faulty)

    def open(self):
        return contextlib.nullcontext(self)

    def num_frames(self, video):
        return 5

    def num_words(self, caption_id):
        return 2

    def read_frames(self, video):
        return {"key": np.ones((5, 6), np.float32)}["no key" if self.faulty else "key"]

    def read_words(self, caption_id):
        return np.ones((2, 4), np.float32)


def configured(folder):
    """Return the configuration of `Attributes`, with prepared sets in a folder."""
    config = default()
    config.data.update(data_dir=str(folder), visual_dim=6, text_dim=4)
    return config


def test_data_set_may_set_its_attributes_in_init(tmp_path):
    config = configured(tmp_path)
    assert open_data(config, Attributes()).train.video_ids == ("train0", "train1")
    source = Attributes()
    assert isinstance(source, Source) and isinstance(source, Reader)


class Cached(Attributes):
    fingerprint = functools.cache(Attributes.fingerprint)


@pytest.mark.parametrize("source", [Attributes, Cached])
def test_error_in_a_users_class_has_its_line(tmp_path, source):
    config = configured(tmp_path)
    with pytest.raises(DataError, match=r'test_dataset\.py:\d+: return .*"no key".*KeyError'):
        open_data(config, source(faulty=True))


def test_a_missing_width_of_a_data_set_is_named(config):
    source = Attributes()
    del source.text_dim
    with pytest.raises(DataError, match=r"test_dataset\.py: .* no attribute 'text_dim"):
        open_data(config, source)


def test_sizes_of_a_data_set_may_be_numpy_integers(tmp_path):
    source, config = Attributes(), configured(tmp_path)
    source.num_frames, source.num_words = lambda video: np.int64(5), lambda caption: np.int32(2)
    assert open_data(config, source).train.words_per_video.tolist() == [2, 2]


def test_annotations_beyond_json_fail_before_features_are_read(tmp_path, monkeypatch):
    source, config = Attributes(faulty=True), configured(tmp_path)  # its features cannot be read
    monkeypatch.setattr(source, "annotations", lambda split: {"spans": np.float32(1)})
    with pytest.raises(DataError, match="float32 is not JSON serializable"):
        open_data(config, source)


def test_splits_are_not_read_again_for_each_video(tmp_path):
    class Property(Attributes):
        num_calls = 0

        @property
        def splits(self):
            self.num_calls += 1
            return self.stored_splits

        @splits.setter
        def splits(self, splits):
            self.stored_splits = splits

    def count_calls(num_videos):
        source = Property()
        source.splits = {
            split: {f"{split}{k}": [Caption(f"{split}{k}#0", "x")] for k in range(num_videos)}
            for split in SPLITS
        }
        open_data(configured(tmp_path / f"{num_videos}"), source)
        return source.num_calls

    assert count_calls(1) == count_calls(3)


def test_validation_videos_among_test_videos_are_reported(tmp_path, caplog):
    source, config = Attributes(), configured(tmp_path)
    open_data(config, source)
    assert "also validation videos" not in caplog.text
    source.name = "shared"
    source.splits["test"]["val1"] = [Caption("val1#1", "y")]
    open_data(config, source)
    assert "1 of 3 test videos are also validation videos" in caplog.text


def test_training_videos_in_other_splits_are_reported_each_time(tmp_path, caplog):
    source, config = Attributes(), configured(tmp_path)
    source.splits["test"]["train1"] = [Caption("train1#1", "y")]
    source.splits["val"]["train0"] = [Caption("train0#1", "y")]
    for _ in range(2):
        caplog.clear()
        open_data(config, source)
        assert [record.message.partition(", ")[0] for record in caplog.records] == [
            "1 of 3 validation videos are also training videos",
            "1 of 3 test videos are also training videos",
        ]


def write_sentences(path, sentence):
    """Write annotations with a moment for each caption of `captioned`."""
    videos = []
    for name in (f"{split}{k}" for split in SPLITS for k in range(2)):
        moment = AnnotatedMoment(f"{name}#enc#0", 1.0, 2.0, sentence(name))
        videos.append(TimedVideo(name, 9.0, (moment,)))
    write_moments(path, videos)


def captioned(path, sentence):
    """Return a source of two captions a split and a configuration with their file of moments."""
    source, config = Attributes(), configured(path.parent / "prepared")
    source.splits = {
        split: {f"{split}{k}": [Caption(f"{split}{k}#enc#0", sentence(k))] for k in range(2)}
        for split in SPLITS
    }
    config.eval.moments = str(path)
    return source, config


def test_times_of_other_sentences_are_refused(tmp_path):
    path = tmp_path / "times"
    source, config = captioned(path, "it's {}.".format)
    write_sentences(path, lambda video: f" It's \n {video[-1]}")
    assert open_data(config, source).test.caption_spans() == [(1.0, 2.0, 9.0)] * 2
    write_sentences(path, lambda video: "else" if video == "test1" else f"its {video[-1]}")
    complaint = (
        r"times has another sentence for 1 of 2 captions, such as 'test1#enc#0': 'else', but the"
        r" caption is \"it's 1.\"; give"
    )
    with pytest.raises(DataError, match=complaint):
        open_data(config, source)


def test_sentences_of_long_split_are_compared_in_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr("hlformer_jax.data.split.CHECKED_VIDEOS", 1)
    path = tmp_path / "times"
    source, config = captioned(path, "x".format)
    write_sentences(path, lambda video: "y" if video == "test1" else "x")
    test = open_data(config, source).test
    with pytest.raises(DataError, match="another sentence for 1 of 2 captions"):
        test.caption_spans()


# Trees


D, E = 6, 5


@pytest.fixture
def tree_config(tmp_path):
    config = default("hover")
    config.data.update(
        data_dir=str(tmp_path / "prepared"), visual_dim=D, text_dim=E, max_clips=1, max_words=8,
        dtype="float32",
    )  # fmt: skip
    return config


@pytest.fixture
def planted(tree_config):
    tree_config.data.synthetic_videos = (60, 5, 6)
    return tree_config


def three_moments(video):
    """Return a video of half a minute with three consecutive moments."""
    moments = (
        AnnotatedMoment(f"{video}#enc#{k}", 10.0 * k, 10.0 * k + 10, f"Thing {k}.")
        for k in range(3)
    )
    return TimedVideo(video, 30.0, tuple(moments))


@pytest.fixture
def released(tiny, write, tree_config):
    """A collection in the released layout with files of moments."""
    rng = np.random.default_rng(5)
    videos = {
        split: [three_moments(video) for video in tiny.frames if video.startswith(split)]
        for split in SPLITS
    }
    timed = [video for videos_of_split in videos.values() for video in videos_of_split]
    for moment in (moment for video in timed for moment in video.moments):
        tiny.words.setdefault(moment.moment_id, rng.normal(size=(3, E)).astype(np.float32))
    collection = write(tiny)
    for split, videos_of_split in videos.items():
        write_moments(collection.root / "Trees" / f"{split}.moments.jsonl", videos_of_split)
    tree_config.data.update(
        manual_dir=str(collection.manual_dir), collection="tiny", feature="feat"
    )
    return tree_config, collection, videos, tiny


def unit(vectors):
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-5)


def test_released_features_with_moments_are_opened(released):
    config, _, videos, tiny = released
    data = open_trees(config)
    assert data.train.pool.videos == tuple(video.video for video in videos["train"])
    assert data.train.num_nodes == 6 * 4 and data.train.num_items == 3 * 4
    assert data.test.pool.texts[:4] == ("Thing 0.", "Thing 1.", "Thing 2.", "Thing 0. Thing 1.")
    split = data.train
    for tree, video in enumerate(videos["train"]):
        example = split.features[split.video[tree]]
        np.testing.assert_allclose(example.frames, unit(tiny.frames[video.video]), rtol=1e-5)
        words = np.concatenate([unit(tiny.words[moment.moment_id]) for moment in video.moments])
        packed = np.concatenate(example.words)
        assert len(packed) == split.words_per_video[split.video[tree]]
        root = np.flatnonzero(split.pool.tree == tree)[-1]
        rows = split.word_rows[root]
        np.testing.assert_allclose(packed[rows[rows >= 0]], words[:8], rtol=1e-5)
        length = len(tiny.frames[video.video])
        assert split.rows[root].tolist() == [0, length - 1]
        assert split.num_rows[root] == length


def test_videos_without_tree_are_counted(released):
    config, collection, videos, _ = released
    assert open_trees(config).test.note == ""
    first, second, third, *remaining = videos["train"]
    odd = [
        first._replace(moments=first.moments[:1]),
        second._replace(moments=tuple(moment._replace(start=0.0) for moment in second.moments)),
        third._replace(moments=third.moments[::-1]),
    ]
    path = collection.root / "Trees" / "train.moments.jsonl"
    write_moments(path, [*odd, *remaining])
    train = open_trees(config).train
    assert train.note == (
        "2 of 4 videos of train have no tree: 1 with a single moment, 1 in which no moment follows"
        " another"
    )
    turned = np.flatnonzero(train.pool.tree == train.pool.videos.index(third.video))
    assert train.pool.texts[turned[0]] == "Thing 0."
    tree = trees.tree_to_json(trees.build(third), third)
    (collection.root / "Trees" / "train.trees.jsonl").write_text(json.dumps(tree))
    note = "3 of 4 videos of train have no tree: the file of trees has none for them"
    assert open_trees(config).train.note == note


def test_prepared_trees_do_not_need_their_source(released):
    config, collection, _, _ = released
    first = open_trees(config)
    assert open_data(config).fingerprint != first.fingerprint
    collection.root.rename(collection.root.with_name("elsewhere"))
    again = open_trees(config)
    assert again.fingerprint == first.fingerprint and again.test.pool.texts == first.test.pool.texts


def test_changed_moments_or_trees_are_another_data_set(released):
    config, collection, videos, _ = released
    before = open_trees(config)
    tree = trees.build(videos["test"][0], "balanced")
    folder = collection.root / "Trees"
    record = trees.tree_to_json(tree, videos["test"][0])
    (folder / "test.trees.jsonl").write_text(json.dumps(record))
    after = open_trees(config)
    assert after.fingerprint != before.fingerprint
    assert (before.test.num_nodes, after.test.num_nodes) == (12, 5), "the file has one tree"
    assert after.train.num_nodes == before.train.num_nodes
    write_moments(folder / "test.moments.jsonl", videos["test"][:1])
    assert open_trees(config).fingerprint != after.fingerprint


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"id": "test_0#enc#9"}, "test.moments.jsonl:1: caption 'test_0#enc#9' has no features"),
        ({"id": "test_0/0"}, "test.moments.jsonl:1: id 'test_0/0' contains a '/'"),
        ({"end": -1}, "test.moments.jsonl:1: end is -1"),
    ],
)
def test_bad_moment_is_named_with_its_line(released, line, complaint):
    config, collection, videos, _ = released
    path = collection.root / "Trees" / "test.moments.jsonl"
    record = moments_to_json(videos["test"][0])
    record["moments"][0] |= line
    path.write_text(json.dumps(record))
    with pytest.raises(DataError) as caught:
        open_trees(config)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_missing_moments_name_the_command_that_makes_them(released):
    config, collection, _, _ = released
    (collection.root / "Trees" / "val.moments.jsonl").unlink()
    with pytest.raises(DataError, match=r"val\.moments\.jsonl.* --out="):
        open_trees(config)


def test_videos_without_any_tree_are_refused(released):
    config, collection, videos, _ = released
    alone = [video._replace(moments=video.moments[:1]) for video in videos["val"]]
    write_moments(collection.root / "Trees" / "val.moments.jsonl", alone)
    with pytest.raises(DataError, match="moments"):
        open_trees(config)


def test_forms_of_trees_share_one_prepared_set(planted, tmp_path):
    nodes = {}
    for form in ("released", "shallow", "balanced"):
        planted.trees.form = form
        nodes[form] = open_trees(planted).train.num_nodes
    assert nodes["shallow"] < nodes["balanced"] < nodes["released"]
    assert len(list((tmp_path / "prepared" / "prvr").glob("synthetic_trees*"))) == 1


def test_training_trees_are_selected_by_leaves_share_or_list(planted, tmp_path):
    full = open_trees(planted)
    planted.trees.train_leaves = (2,)
    pairs = open_trees(planted)
    assert set(pairs.train.pool.leaves.tolist()) == {2}
    assert (
        pairs.train.num_items == (full.train.pool.leaves[full.train.pool.subtrees[:, 0]] == 2).sum()
    )
    assert pairs.test.num_nodes == full.test.num_nodes
    planted.trees.train_leaves = ()
    planted.trees.train_subset = "fewshot"
    few = open_trees(planted)
    assert len(few.train.pool.videos) == 6
    planted.seed = 1
    assert open_trees(planted).train.pool.videos == few.train.pool.videos
    listed = tmp_path / "few.txt"
    listed.write_text("train_00007\ntrain_00002\n")
    planted.trees.train_subset = str(listed)
    few = open_trees(planted)
    assert few.train.pool.videos == ("train_00002", "train_00007")
    assert full.train.subset is None and few.fingerprint == full.fingerprint
    listed.write_text("train_00002\ntrain_00007\n")
    assert open_trees(planted).train.subset == few.train.subset
    listed.write_text("train_00007\ntrain_00003\n")
    assert open_trees(planted).train.subset != few.train.subset is not None
    listed.write_text("train_00007\nmissing\n")
    with pytest.raises(DataError, match="few.txt:2"):
        open_trees(planted)
    planted.trees.train_subset = "half"
    with pytest.raises(DataError, match="train_subset is 'half': it must be 'full', 'fewshot'"):
        open_trees(planted)
    planted.trees.update(train_subset="full", train_leaves=(40,))
    with pytest.raises(DataError, match="no tree"):
        open_trees(planted)


def test_held_out_trees_are_not_trained_on(planted):
    planted.trees.validation = "held_out"
    train, val, test, _ = open_trees(planted)
    assert (len(train.pool.videos), len(val.pool.videos)) == (57, 3)
    assert not set(train.pool.videos) & set(val.pool.videos)
    assert all(video.startswith("test") for video in test.pool.videos)


LAYOUTS = [  # configuration, method of TinyCorpus, feature, numbers of test videos and queries
    ("ms_sl:tvr", "write_hdf5", "feat", (2, 3)),
    ("clip:ms_sl-tvr", "write_clip", "clip_L14", (2, 3)),
    ("clip:clip4clip_seqtransf-tvr", "write_clip", "clip_L14", (2, 3)),
    ("clip:ms_sl-tvr_b32", "write_b32", "clip_B32", (2, 3)),
    ("clip:clip4clip_meanp-anet_b32", "write_b32", "clip_B32_ours", (2, 3)),
    ("clip:ms_sl-anet_b32", "write_b32", "clip_B32_ours_word", (2, 3)),
    ("clip:ms_sl-qv", "write_clip", "slowfast_clip", (2, 3)),  # MSC's file
    ("clip:ms_sl-qv", "", "slowfast_clip", (2, 2)),
    ("clip:ms_sl-qv_clips", "", "slowfast_clip", (1, 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write", "feature", "sizes"), LAYOUTS)
def test_every_layout_can_be_trained_on(tiny, tmp_path, name, write, feature, sizes):
    file, data = name.split(":")
    config = load(ROOT / "configs" / f"{file}.py", f"{data}-debug")
    manual = tmp_path / "manual"
    config.data.update(manual_dir=str(manual), data_dir=str(tmp_path / "prepared"))
    if write:
        # Sentences and frames of CLIP have one width.
        tiny.frames = {video: frames[:, :5] for video, frames in tiny.frames.items()}
        getattr(tiny, write)(manual, **({} if write == "write_hdf5" else {"feature": feature}))
        config.data.update(collection="tiny", visual_dim=5, text_dim=5, feature=feature)
    else:
        corpora.write_qvhighlights(manual)
        assert config.data.feature == feature
    config.train.update(epochs=1, batch_size=2)
    loop.train(config, tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "test_metrics.json").read_text())
    assert (metrics["videos"], metrics["queries"]) == sizes
    assert metrics["R@100"] == 100
