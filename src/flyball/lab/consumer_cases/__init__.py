"""What the benchmark `consumer` measures, a group of figures a file; `runs` repeats and writes down.

Each case is given the contenders and the plant; all of them meet the same one, in turn.
"""
