"""Encoders in JAX, read from Hugging Face folders: CLIP, SigLIP, SigLIP2, and RoBERTa for texts.

    protocol     interfaces through which the rest of the package uses encoders
    encoder      the encoders as objects: images and texts → unit vectors, texts → token features
    hub          loading from a folder or by an id of the hub, and saving
    families     one file for each architecture: configuration, tensors and computation
    config       sizes of an encoder
    weights      reading and writing of parameters as safetensors
    cpu          encoding of images on a CPU by OpenVINO
    tokenizer    texts → ids
    images       resizing and cropping
    transformer  layers that the architectures share
    train        a tiny SigLIP from images and texts, for the demo

Of SigLIP2, models of fixed resolution can be read. Neither transformers nor PyTorch is needed.

```python
import numpy as np

from hlformer_jax import encoders

encoder = encoders.load("google/siglip-base-patch16-224")  # or a folder
frame = np.zeros((720, 1280, 3), np.uint8)
images = encoder.encode_images(encoder.preprocess(frame)[None])
texts = encoder.encode_texts(["a person opens the fridge"])
print(encoder.probability(texts @ images.T))
```
"""

from typing import TYPE_CHECKING

from hlformer_jax import lazy

if TYPE_CHECKING:
    from hlformer_jax.encoders import (
        config,
        cpu,
        encoder,
        families,
        hub,
        images,
        protocol,
        tokenizer,
        train,
        transformer,
        weights,
    )
    from hlformer_jax.encoders.config import EncoderError
    from hlformer_jax.encoders.encoder import ImageTextEncoder, TextEncoder
    from hlformer_jax.encoders.hub import load, load_text, save
    from hlformer_jax.encoders.protocol import Encoder, TokenEncoder

__getattr__, __dir__, __all__ = lazy.namespace(
    __name__,
    {
        "config": "EncoderError",
        "cpu": "",
        "encoder": "ImageTextEncoder TextEncoder",
        "families": "",
        "hub": "load load_text save",
        "images": "",
        "protocol": "Encoder TokenEncoder",
        "tokenizer": "",
        "train": "",
        "transformer": "",
        "weights": "",
    },
)
