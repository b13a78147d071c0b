"""Stage a dataset on the node and read each training step's samples."""
