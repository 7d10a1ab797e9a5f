"""Sinks for loop records, one in each module. Every sink is bounded: it drops the oldest and counts them.

memory      a ring, for programs and tests
sqlite      a table, for looking back after a restart
parquet     a few rotating files, for analysis
prometheus  the last value of every loop as text, for scraping
"""
