"""The launcher of a node: join the others, check the host, watch the workers, end coded."""
