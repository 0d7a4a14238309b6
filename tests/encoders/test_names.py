import numpy as np
import safetensors

from hlformer_jax.encoders import names


def tensors(folder):
    """Shapes of a recorded folder's tensors, by their names."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safetensors.safe_open(path, "numpy") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    return found


def test_leaves_name_the_tensors_of_a_file_and_their_shapes(encoder, golden, kind):
    found = names.leaves(encoder.config)
    ours = {name: leaf.shape for leaf in found.values() for name in leaf.names}
    assert sum(len(leaf.names) for leaf in found.values()) == len(ours)
    theirs = tensors(golden / kind)
    for ignored in ("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"):
        theirs.pop(ignored, None)
    assert ours == theirs


def test_what_is_read_into_the_tree_is_written_back_as_it_was(encoder, kind):
    rng = np.random.default_rng(0)
    for path, leaf in names.leaves(encoder.config).items():
        value = rng.random(leaf.shape, np.float32)
        if kind.startswith("siglip"):
            np.testing.assert_array_equal(leaf.write(leaf.read(value)), value, err_msg=path)
        if path[-1] == "kernel" and value.ndim == 2:
            np.testing.assert_array_equal(leaf.read(value), value.T, err_msg=path)


def test_patches_lie_in_the_tree_as_row_column_channel(loaded):
    encoder = loaded("siglip")
    leaf = names.leaves(encoder.config)["vision", "patch", "kernel"]
    value = np.random.default_rng(0).random(leaf.shape, np.float32)
    size, width = encoder.config.vision.patch_size, encoder.config.vision.width
    kernel = leaf.read(value).reshape(size, size, 3, width)
    assert kernel[1, 2, 0, 3] == value[3, 0, 1, 2]


def test_leaves_of_layers_are_stacked_and_no_others(encoder):
    for path, leaf in names.leaves(encoder.config).items():
        layers = getattr(encoder.config, path[0]).layers if "layers" in path else 1
        assert (leaf.stacked, len(leaf.names)) == ("layers" in path, layers), path
