"""Limiters of requests in flight as they are published, to compare with: Vegas, Gradient2 and AIMD.

They are the rules of Netflix's library concurrency-limits with its defaults, stepped once a second with the mean
residence time of the second, as its `WindowedLimit` does. Where the window was not even half used they hold.
"""
