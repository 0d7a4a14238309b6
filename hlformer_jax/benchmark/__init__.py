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

Search in one's own videos (`search`): the ten best frames for a query, of simulated vectors of
width 768 at a frame a second, mapped into memory; two cores and nothing else at work, medians of 4
queries, in one run. All find the ten best of the float32 vectors.

| rows | 1 hour | 10 hours | 100 hours | 1,000 hours |
| --- | --- | --- | --- | --- |
| float16, as the index keeps them (5.5 GB) | 0.84 ms | 8.5 ms | 86 ms | 734 ms |
| bfloat16 | 0.45 ms | 5.9 ms | 58 ms | 518 ms |
| bfloat16, the best again | 0.48 ms | 6.1 ms | 57 ms | 534 ms |
| int8 (2.8 GB) | 0.38 ms | 4.5 ms | 43 ms | 421 ms |
| int8, the best again | 0.42 ms | 4.8 ms | 51 ms | 433 ms |
| Qdrant local, float32 | 1.4 ms | 26 ms | | |
| LanceDB, float32 | 7.2 ms | 37 ms | 326 ms | |
| `Library.query`, best_frame | 72 ms | 81 ms | 142 ms | 486 ms |
| `Library.query`, segments | 67 ms | 73 ms | 85 ms | 213 ms |

To copy as many bytes as int8 has takes 273 ms at 1,000 hours, the others 544 ms. Products are off
by 0.0016 at most with int8 (bound 0.015) and by 0.0003 with bfloat16 (bound 0.002). A library's
query includes the encoding of its sentence, 50 ms by an encoder as large as SigLIP base, and the
reading of ten videos' files. To pack the rows at the first question takes 0.04, 0.18, 3.2 and 36 s,
and after a new video 0.03, 0.16, 2.2 and 10 s. A fresh process has its first result in 1,000 hours
after 3.9 s (2.8 to 13 s), of which 2.8 s are the encoder's.

Extraction (`extract`), of rendered H.264 of 960 x 720 pixels and 25 frames a second, with one
process that decodes, on the same machine: 37 s of video are indexed at 4.6 times real time with an
encoder as large as SigLIP base (parts: decoding 41 times real time, preprocessing 560, encoding
5.5, which takes 87 % of them; floor of a batch of 16 frames 1.24 s, ratio 1.8), 71 s at 33 times
with one as small as the demo's (decoding 46 times, 99 % of the parts; 1.6 times its floor: every
frame decoded, none converted).
"""
