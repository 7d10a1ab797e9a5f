"""Columns and expressions of the configuration, checked and compiled to Spark SQL."""
