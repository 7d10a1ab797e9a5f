"""Processes that this program starts: ours to signal, to restart, and to end with us.

process     one of them: started, found again, signalled and ended by its pid
guardian    ends what a killed program would leave behind
"""
