"""Times of the package's own work beside the highest rates of the hardware (`docs/benchmark.md`).

__main__        the command: programs by name, and their report
measure         the clock, the floor of a piece of work, rows of a report, random data
step            training: a step, beside the authors' released code; an epoch, preparation of
                data, compiling
query           search in the corpus of a model, and in archives of one's own videos
plan            programs that XLA compiles for an absent GPU, and their time by roofline
geometry        functions of hyperbolic space, and their errors, beside other libraries
"""
