"""Where records go. One sink a file, every one bounded: it drops the oldest and counts what it dropped.

memory      a ring, for programs and tests
sqlite      a table, for looking back after a restart
parquet     a few rotating files, for analysis
prometheus  the last value of every loop as text, for scraping
"""
