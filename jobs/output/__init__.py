"""Output for people and programs: tables, log lines, JSON documents."""
