"""Python imports this as it starts: every process of a whole job gets the replacements.

Only tests/nxd puts this folder on PYTHONPATH.
"""

from tests.nxd import on_cpu

on_cpu.install()
