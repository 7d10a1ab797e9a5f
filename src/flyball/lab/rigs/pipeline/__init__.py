"""Pipelines under load, and lanes of the twin."""
