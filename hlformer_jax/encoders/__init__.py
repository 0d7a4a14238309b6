"""Image-text encoders in JAX, read from Hugging Face folders: CLIP, SigLIP, SigLIP2.

    encoder        images and sentences → unit vectors of one space
    folder         an encoder read from a folder, and written to one
    train          a tiny SigLIP from images and sentences of one's own: `train.train`
    hub            a folder by its path or by an id of the hub
    config         sizes and options, with the defaults that files leave out
    settings       the JSON files of a folder
    names          where each parameter stands in a file
    weights        parameters from safetensors, and back
    tokenizer      sentences → ids
    sentence_piece a tokenizer from the file that old SigLIP folders have
    images         how an image is resized and cropped
    vision, text   the two encoders, pure functions over parameters
    layers         the transformer that both are made of
    errors         what is wrong with a folder, in one line

SigLIP2 is read where its resolution is fixed. Neither transformers nor PyTorch is needed.

```python
import numpy as np

from hlformer_jax import encoders

encoder = encoders.load("google/siglip-base-patch16-224")  # or a folder
frame = np.zeros((720, 1280, 3), np.uint8)
images = encoder.images(encoder.preprocess(frame)[None])
sentences = encoder.sentences(["a person opens the fridge"])
print(encoder.probability(sentences @ images.T))
```
"""

from hlformer_jax.encoders.encoder import Encoder
from hlformer_jax.encoders.errors import EncoderError
from hlformer_jax.encoders.folder import load, save

__all__ = ["Encoder", "EncoderError", "load", "save"]
