"""Encoders in JAX, read from Hugging Face folders: CLIP, SigLIP, SigLIP2; RoBERTa of sentences.

    encoder      images and sentences → unit vectors of one space, sentences → features of tokens;
                 by a folder or an id of the hub
    config       sizes and options, with the defaults that files leave out
    weights      parameters from safetensors, and back
    tokenizer    sentences → ids
    images       how an image is resized and cropped
    transformer  the encoders, pure functions over parameters
    train        a tiny SigLIP from images and sentences, for the demo

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

from hlformer_jax.encoders.config import EncoderError
from hlformer_jax.encoders.encoder import Encoder, TextEncoder, load, load_text, save

__all__ = ["Encoder", "EncoderError", "TextEncoder", "load", "load_text", "save"]
