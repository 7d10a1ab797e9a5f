"""Brings messages to a broker.

feed   a numbered sequence of events → a log, each exactly once, continuing where an earlier run stopped
"""
