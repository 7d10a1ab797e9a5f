"""Is a closed loop stable, how far from instability, and how does it respond?"""
