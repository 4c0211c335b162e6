"""What stands in for a model where none is configured: rules, honest about being rules."""
