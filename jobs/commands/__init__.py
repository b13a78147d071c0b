"""One verb per file; what is heavy is imported when the verb runs."""
