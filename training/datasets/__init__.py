"""From text to packed token shards, and from those to the sequences of a training step."""
