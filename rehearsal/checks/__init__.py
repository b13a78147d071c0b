"""Checks of what the steps left: endings, training, pages, leftovers."""
