"""Checks of the results of the steps: endings, training, pages, leftovers."""
