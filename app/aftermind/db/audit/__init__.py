"""The audit trail: its log and its hash chain."""
