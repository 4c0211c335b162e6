"""What stands behind `Memory`: where things are, how they are put together, and its smaller faces."""
