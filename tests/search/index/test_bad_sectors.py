"""Sectors that the disk cannot read: nothing is lost, and no process is killed."""

import shutil
import subprocess
import sys

import archive
import numpy as np
import processes
import pytest

from hlformer_jax.search.index import packed
from hlformer_jax.search.index.embeddings import Embeddings

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_bad(int file, size_t bytes, off_t offset) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path);
  const char *bad = getenv("BAD_FILE");
  size_t end = strlen(bad);
  long sector = atol(getenv("BAD_OFFSET"));
  return length >= (ssize_t)end && !memcmp(path + length - end, bad, end) &&
         offset <= sector && offset + (off_t)bytes > sector;
}

#define READ(name)                                                        \
  ssize_t name(int file, void *to, size_t bytes, off_t offset) {          \
    ssize_t (*next)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, #name); \
    if (!is_bad(file, bytes, offset)) return next(file, to, bytes, offset); \
    errno = EIO;                                                          \
    return -1;                                                            \
  }
READ(pread)
READ(pread64)

#define READV(name)                                                         \
  ssize_t name(int file, const struct iovec *to, int count, off_t offset,   \
               int flags) {                                                 \
    ssize_t (*next)(int, const struct iovec *, int, off_t, int) =           \
        dlsym(RTLD_NEXT, #name);                                            \
    if (!is_bad(file, to->iov_len, offset))                                 \
      return next(file, to, count, offset, flags);                          \
    errno = EIO;                                                            \
    return -1;                                                              \
  }
READV(preadv2)
READV(preadv64v2)
"""
"""A library whose reads of one byte of a file fail as on a disk with a bad sector."""


@pytest.fixture(scope="module")
def bad_sector(tmp_path_factory):
    """Returns a function that runs a program with a bad sector in a file of an index."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a C compiler on Linux makes the library of bad sectors")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=SHIM, text=True, check=True)

    def run(name, offset, program, *arguments):
        env = processes.environment() | {
            "LD_PRELOAD": str(library), "BAD_FILE": f"/{name}", "BAD_OFFSET": str(offset),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)], env=env, text=True,
            capture_output=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def directory(tmp_path):
    index = archive.indexed(tmp_path / "index", archive.folder(tmp_path / "films"))
    return index.directory


OPEN = """
import sys
from pathlib import Path
from hlformer_jax.errors import UnreadableError
from hlformer_jax.search.index import Index
index = Index.open(Path(sys.argv[1]))
print(len(index.videos), *index.notes)
try:
    with index.running():
        pass
except UnreadableError as error:
    print(error)
print(*index.verify().values())
"""


@pytest.mark.parametrize("page", [1, 3, 6])
def test_unreadable_page_of_the_database_is_not_damage(bad_sector, directory, page):
    before = archive.everything(directory)
    out = bad_sector("index.db", 4096 * page, OPEN, directory)
    assert "index.db cannot be read (disk I/O error)" in out and "index.db is damaged" not in out
    assert archive.everything(directory) == before


def test_copy_with_an_unreadable_page_is_named_unreadable(bad_sector, directory):
    out = bad_sector("index.db.bak", 4096 * 3, OPEN, directory)
    assert "index.db.bak cannot be read (disk I/O error)" in out


QUERY = """
import sys
from pathlib import Path
import archive
from hlformer_jax.search.query.library import Library
library = Library(Path(sys.argv[1]), encoder=archive.Encoder())
results = library.query("red")
print(len(library.videos()), len(results), *results.warnings)
"""


@pytest.mark.parametrize("suffix", ["f16", "times"])
def test_video_with_unreadable_embeddings_is_left_out(bad_sector, tmp_path, suffix):
    films = archive.folder(tmp_path / "films")
    archive.random_film(films / "z.film", 3000)  # several sectors
    directory = archive.indexed(tmp_path / "index", films).directory
    file = directory / f"embeddings-1.{suffix}"
    out = bad_sector(file.name, file.stat().st_size - 1, QUERY, directory)
    # Mapped into memory, such a page would kill the process by SIGBUS.
    assert out.startswith("4 3 ") and "'z.film'" in out and "are damaged" in out


ROWS = """
import sys
from pathlib import Path
from hlformer_jax.search.index.embeddings import Embeddings, RowSpan
spans = eval(sys.argv[2])
matrix, damaged = Embeddings(Path(sys.argv[1]), 64).rows(1, spans)
print(damaged, type(matrix).__name__, *(float(matrix[span.first, 0]) for span in spans))
"""


def test_unused_rows_with_a_bad_sector_damage_nothing(bad_sector, tmp_path):
    embeddings, rows = Embeddings(tmp_path, 64), 200
    spans = [
        embeddings.append(1, rows * k, np.arange(rows) / 1.0, np.full((rows, 64), k, np.float16))
        for k in range(3)
    ]
    used = repr([spans[0], spans[2]])  # the second content was removed
    middle = rows * 64 * 2 * 3 // 2
    # Of a mapped file, the matrix product over all rows would kill the process by SIGBUS.
    assert bad_sector("embeddings-1.f16", middle, ROWS, tmp_path, used) == "[] ndarray 0.0 2.0\n"
    assert bad_sector("another file", middle, ROWS, tmp_path, used) == "[] memmap 0.0 2.0\n"


LOAD = """
import sys
from pathlib import Path
from hlformer_jax.search.index import packed
matrix = packed.load_matrix(Path(sys.argv[1]), (200, 64), "float32")
print(matrix is not None and bool((matrix == 1).all()))
"""


def test_derived_matrix_with_a_bad_sector_is_computed_again(bad_sector, tmp_path):
    path = tmp_path / "packed" / f"segments-{'0' * 32}.npy"
    rows = np.ones((200, 64), np.float32)
    packed.load_or_compute(path, rows.shape, lambda: rows)
    assert bad_sector(path.name, rows.nbytes // 2, LOAD, path) == "False\n"
    assert bad_sector("another file", 0, LOAD, path) == "True\n"
