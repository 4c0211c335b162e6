"""External vector indexes: projections of its episodes, which name candidates for a recall."""
