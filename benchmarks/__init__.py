"""Times of this package's programs, compared with the highest rates of the hardware.

docs/benchmark.md has the options and the results.

__main__        the command: programs by name, and their report
measure         timing, the floor of a piece of work, rows of a report, random data
simulated       random videos with the sizes of a real split
step            training: a step, beside the authors' released code; an epoch, preparation of
                data, compiling
query           search in the corpus of a model, and in archives of a user's videos
index           the index of a search: adding a video, unchanged files, the first query
plan            programs that XLA compiles for an absent GPU, and their time by roofline
measured        planned programs on the present device, and the times of their kernels
geometry        functions of hyperbolic space, and their errors, beside other libraries
"""
