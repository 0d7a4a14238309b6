"""The released layout: features as MS-SL published them, and GMMFormer and HLFormer read them.

layout       which files there are, and where they lie
collection   `Collection`, the source: whether the files are there, and their fingerprint
reader       `ReleasedReader`: what the files say together, and what contradicts itself
captions     {collection}{split}.caption.txt
frame_lists  id.txt and video2frames.txt
frames       shape.txt and feature.bin
words        roberta_{collection}_query_feat.hdf5, and any HDF5 file of features
teacher      the same with a teacher: new_clip_vit_32_{collection}_vid_features.hdf5 and
             clip_ViT_B_32_{collection}_query_feat.hdf5
writer       the synthetic corpus as released files, for tests and benchmarks
"""
