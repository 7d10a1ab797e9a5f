"""Processes that this program starts, signals, restarts and ends.

process     one process: start it, find it again, signal it and end it by its pid
guardian    ends the processes that a killed program would leave behind
"""
