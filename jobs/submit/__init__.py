"""From a command line to a submitted job: parse, resolve, check, plan, confirm, send."""
