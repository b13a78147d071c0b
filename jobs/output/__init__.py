"""Terminal and JSON output: tables, log lines, documents."""
