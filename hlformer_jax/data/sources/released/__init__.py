"""Features as their authors published them.

layouts         the layouts of data sets on a disk, as sources
frame_lists     frames: id.txt, video2frames.txt, shape.txt, feature.bin
hdf5            features in HDF5 files: checked, read and written
qvhighlights    QVHighlights' layout
"""
