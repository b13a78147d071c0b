"""What people and programs read: tables, log lines, JSON documents."""
