"""What both sides agree on; a change here is a compatibility change."""
