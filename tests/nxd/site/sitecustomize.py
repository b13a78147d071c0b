"""Imported by Python at startup: every process of a job gets the replacements.

Only tests/nxd puts this folder on PYTHONPATH.
"""

from tests.nxd import on_cpu

on_cpu.install()
