"""Times of the package's own work beside what the hardware can do at best (`docs/benchmark.md`).

__main__        the command: programs by name, and their report
measure         the clock, the floor of a piece of work, rows of a report, random data
step            training: a step, beside the authors' released code; an epoch, preparation of
                data, compiling
query           search in the corpus of a model, and in archives of one's own videos
plan            what XLA would run on a GPU that is not there, and its time by roofline
geometry        functions of hyperbolic space, and their errors, beside other libraries
"""
