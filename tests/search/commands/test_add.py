"""`add PATH`: files and folders of the archive, and nothing beside them."""

import archive

from hlformer_jax.search.index import Index


def test_files_and_folders_are_added_and_the_rest_is_not_looked_at(search, films, index, calls):
    archive.film(films / "trips" / "d.film", ["white"] * 3)
    archive.film(films / "e.film", ["white", "red"])
    archive.film(films / "left out.film", ["green"])
    (films / "b.film").unlink()
    seen = calls.encoder.seen
    added = search("add", films / "trips", films / "e.film", f"--index={index}", "--workers=0")
    assert added.status == 0 and "2 indexed, 1 unchanged" in added.out
    assert calls.encoder.seen - seen == 3 + 2
    names = [entry.video for entry in Index.open(index).entries()]
    assert names == ["a.film", "b.film", "e.film", "trips/c.film", "trips/d.film"]


def test_a_link_of_the_folder_is_a_path_of_the_folder(search, films, index, tmp_path):
    elsewhere = archive.film(tmp_path / "elsewhere.film", ["yellow"] * 2)
    (films / "link.film").symlink_to(elsewhere)
    refused = search("add", elsewhere, f"--index={index}")
    assert refused.status == 1 and "move it there, or index its own folder" in refused.errors[0]
    assert search("add", films / "link.film", f"--index={index}", "--workers=0").status == 0
    assert "link.film" in Index.open(index).manifest.videos
