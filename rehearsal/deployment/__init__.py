"""The emulated account, and the tools that deploy to it."""
