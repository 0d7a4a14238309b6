"""Checkpoints of the authors' released codes, read without PyTorch and written as ours.

    __main__       the command: best.ckpt OUT, and how OUT is evaluated
    convert        a released checkpoint → parameters, sizes and options of ours
    names          a released parameter's name → its location in our parameters
    pickle_reader  the pickle inside the file → plain containers and NumPy arrays
    zip_entries    the zip file around it → bytes
    errors         what is wrong with a file, and how its strings are quoted

Nothing in a file is executed, and no file takes more memory or time than its size explains.
"""
