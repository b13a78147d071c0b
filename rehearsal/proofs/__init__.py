"""Checks of the steps' results: endings, training, pages, leftovers."""
