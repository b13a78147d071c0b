"""A small network on handwritten digits."""
