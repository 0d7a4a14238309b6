"""Videos into an index: finding, decoding and encoding them, in one run or as they change."""
