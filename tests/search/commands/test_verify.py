"""`verify`: a damaged file is named."""


def test_verify_names_what_is_damaged_and_index_makes_it_anew(search, films, index):
    assert search("verify", f"--index={index}").out == "4 files are whole\n"
    path = next((index / "videos").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    done = search("verify", f"--index={index}")
    assert done.status == 1 and path.name in done.out and "1 of 4 files" in done.errors[0]
    again = search("index", films, f"--index={index}", "--workers=0")
    assert "1 indexed, 2 unchanged" in again.out and "made anew" in again.errors[0]
    assert search("verify", f"--index={index}").status == 0


def test_verify_reads_packed_rows_through_too(search, films, index):
    [path] = (index / "packed").iterdir()
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    done = search("verify", f"--index={index}")
    assert done.status == 1 and path.name in done.out
    assert search("index", films, f"--index={index}", "--workers=0").status == 0
    assert search("verify", f"--index={index}").status == 0
