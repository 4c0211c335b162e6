"""How well a memory recalls what answers known questions: gold sets, measures, comparisons."""
