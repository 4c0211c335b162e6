"""Vector indexes beside a record store: projections of its episodes, which name candidates for a recall."""
