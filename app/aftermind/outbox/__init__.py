"""Transport of turns from the agent's process to workers."""
