"""What `python -m hlformer_jax.benchmark NAME` times, and what was measured with it.

    __main__    the command line; its docstring lists the names
    inputs      random features of real sizes, and what a row of a report is
    measure     clock, what the hardware can do at best, and the floor that it sets
    training, searching, scaling, preparing, geometry    one kind of work each
    extracting  videos to vectors
    asking      sentences in archives of one's own videos, of up to 1,000 hours
    archive     simulated vectors of such an archive, and encoders of random parameters
    fresh       the process whose first result is timed
    stores      Qdrant local and LanceDB, where they are installed
    peer        the authors' released code, run from a checkout beside ours

The work is the package's own: the compiled programs, feeds and readers that training and
evaluation use. A floor is what a matrix product and a copy of the same size take on this machine.

On two cores of a server CPU, float32, JAX 0.10.2, sizes of ActivityNet Captions:

| work | median | floor | ratio |
| --- | --- | --- | --- |
| step, 128 videos with 479 captions | 16.2 s | 8.2 s | 2.0 |
| step, 64 videos with 239 captions | 7.6 s | 4.2 s | 1.8 |
| … of the authors' code, in turn with it (PyTorch 2.15) | 10.9 s | | |
| search in 2,500 videos, float32, a single query | 22 ms | 23 ms | 1.0 |
| … 256 at once: float32, bfloat16, int8 | 3.2, 2.8, 2.3 ms | 1.5, 1.6, 1.6 ms | 2.2, 1.7, 1.4 |
| encode a query of 256 at once (28.4 M parameters, 123 MFLOPs) | 0.80 ms | 0.58 ms | 1.4 |
| prepare | 188 MB/s | | |

The step is 1.4 times as fast as the authors', and a batch from disk comes 3.9 times as fast as from
their loader. Times grow linearly: 8, 16, 32, 64 videos a step take 105, 106, 105, 121 ms a video,
and 625, 1,250, 2,500, 5,000 videos searched for 256 queries 357, 270, 243, 233 us a video.

For a float32 step at these sizes the compiler plans 11.0 GB of memory (TVR: 11.7 GB), beside the
features: 3.7 GB where a training split as long as ActivityNet Captions' lives on the device, 1.4 GB
where it is streamed (three chunks of ten steps). With `config.train.encode_parts` the videos of a
batch are encoded in so many parts, one after another and again for the gradient, to the same
results up to rounding: 5.9 GB in 2 parts, 3.7 GB in 4 (TVR: 4.0 GB), 2.6 GB in 8; a step in 4 parts
takes 17.7 s where it takes 16.7 s in one. (Plans for a CPU; no GPU has been measured.) A step that
a device has no room for is refused with what to change. A checkpoint, once a minute at most, takes
0.9 to 1.3 s, and 0.4 to 0.6 s more where there is a better epoch.

`config.dtype = "bfloat16"` computes the encoders in bfloat16, with parameters, geometry, softmax
and losses in float32 (whose products a GPU may round to TensorFloat-32): `configs/synthetic.py`
then reaches a SumR of 352.5 with seed 0, in float32 353.7 and with seed 1 364.0.
`config.kernels = "pallas"` takes attention and similarity from kernels that keep their logits out
of memory (`ops/fused_*.py`); they are tested in interpret mode and compile for CUDA, but none has
run on a GPU, so XLA's programs are the default.

Search in one's own videos (`search`): the ten best frames for a query, of simulated vectors of
width 768 at a frame a second, mapped into memory. Measured on 22 November 2026 on two cores that
other work shared (load 8 to 10), medians of 4 queries, in one run:

| rows | 1 hour | 10 hours | 100 hours |
| --- | --- | --- | --- |
| float16, as the index keeps them | 5.9 ms | 54 ms | 571 ms |
| bfloat16 | 1.3 ms | 35 ms | 352 ms |
| bfloat16, the best again | 3.1 ms | 31 ms | 402 ms |
| int8 | 1.0 ms | 21 ms | 264 ms |
| int8, the best again | 1.1 ms | 23 ms | 303 ms |
| Qdrant local, float32 | 26 ms | 211 ms | |
| LanceDB, float32 | 25 ms | 216 ms | 1.09 s |
| `Library.query`, best_frame | 591 ms | 911 ms | 947 ms |
| `Library.query`, segments | 742 ms | 1.02 s | 909 ms |

Over 1,000 hours (3.6 million frames in files of 5.5 and 2.8 GB; these functions alone, at a load of
11, medians of 2 to 7 queries) float16 takes 4.3 s, bfloat16 3.4 s and int8 1.4 s; the ten best of
6,000 videos, found by int8 and multiplied again, take 2.4 s and are those of float16. Products are
off by 0.0017 at most with int8 (bound 0.014) and by 0.0003 with bfloat16 (bound 0.002).

A library's query includes the encoding of its sentence, by an encoder as large as SigLIP base, and
the reading of ten videos' files. To pack the rows at the first question took 0.15, 0.87 and 18 s,
and after a new video 0.17, 0.69 and 9.4 s.

Extraction (`extract --encoder=tiny --videos=2`), on the same day and machine: 71 s of rendered
H.264 of 960 x 720 pixels and 25 frames a second are indexed at 10.4 times real time, with one
process that decodes. Decoding alone comes at 14.8 times, 1.1 times its floor (every frame decoded,
none converted), and takes 99 % of the parts' time; preprocessing comes at 4,200 times and the
encoder, as small as the demo's, at 4,300. One as large as SigLIP base has not been measured.
"""
