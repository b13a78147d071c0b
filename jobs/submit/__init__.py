"""From a command line to a submitted job: resolve, check, plan, confirm, send."""
