import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, settings


def test_the_object_of_a_file_is_read_as_utf_8(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes('{"mark": "é", "of": [1, null]}'.encode())
    assert settings.read(path) == {"mark": "é", "of": [1, None]}


@pytest.mark.parametrize(
    ("content", "part"),
    [(b"", "no JSON"), (b"\xff\xfe{}", "no JSON"), (b"{", "no JSON"), (b'"a"', "no object")],
)
def test_a_file_without_an_object_is_one_line_that_names_it(tmp_path, content, part):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(EncoderError, match=part) as caught:
        settings.read(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_left_to_the_caller(tmp_path):
    with pytest.raises(FileNotFoundError):
        settings.read(tmp_path / "a.json")


@pytest.mark.parametrize(("content", "part"), [("{", "no JSON"), ("[]", "no object")])
def test_a_damaged_configuration_is_one_line(copy, content, part):
    for name in ("config.json", "preprocessor_config.json"):
        folder = copy("siglip") if name == "config.json" else copy("siglip2")
        (folder / name).write_text(content)
        with pytest.raises(EncoderError, match=part) as caught:
            encoders.load(folder)
        assert name in str(caught.value) and "\n" not in str(caught.value)
