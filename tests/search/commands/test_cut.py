"""`cut VIDEO`: times and margins of a clip."""


def test_cut_takes_times_as_people_write_them(search, films, index, calls, tmp_path):
    out = tmp_path / "clip.mp4"
    flags = ["--start=0:05", "--end=8.5", "--margin=1", f"--out={out}", f"--index={index}"]
    assert search("cut", "a.film", *flags).status == 0
    assert calls.cuts == [(films / "a.film", 5.0, 8.5, out, 1.0)]
    wrong = search("cut", "a.film", f"--index={index}", "--start=5", "--end=0:04")
    assert wrong.errors == ["error: --end=0:04 is not after --start=5"]
