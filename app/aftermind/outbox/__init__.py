"""The way of a turn out of the agent's process."""
