"""Static analysis of GPU training programs: code that fails or runs slowly on Trainium.

Uses Python's own ``ast``: astroid and jedi infer types from installed packages, but torch is not
installed where jobs are submitted, and libcst preserves formatting, which is not needed here.
"""
