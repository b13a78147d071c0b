"""What holds for every test."""

import signal

from hypothesis import settings

# How long an example takes says nothing where two tests share the cores.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# A script that starts tests in its background has them ignore Ctrl-C, and all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
