"""Rule-based replacements for models if none is configured."""
