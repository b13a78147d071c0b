"""What of a GPU training program does not run, or runs badly, on Trainium, read from its text.

With Python's own ``ast``: astroid and jedi infer types from installed packages, and torch is not
installed where jobs are submitted; libcst keeps the formatting of code, which nothing changes here.
"""
