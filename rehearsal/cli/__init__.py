"""The command line of a rehearsal: its commands and options."""
