"""What holds for every test."""

from hypothesis import settings

# How long an example takes says nothing where two tests share the cores.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
