"""Features as their authors published them.

layouts         the layouts of collections, as sources
frame_lists     frames: id.txt, video2frames.txt, shape.txt, feature.bin
hdf5            features in HDF5 files: checked, read and written
qvhighlights    the layout of QVHighlights, as a source
"""
