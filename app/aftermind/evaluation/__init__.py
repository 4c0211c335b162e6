"""Evaluation of recall: gold sets, measures, comparison of settings."""
