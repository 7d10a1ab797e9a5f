"""Takes messages from a broker and holds a goal by steering how many are in flight.

goals      what a consumer is to hold (rate, capacity, latency, drain-by), and the target that follows from it
little     the default regulator: Little's law from the residence time measured per message, feedback trims
knee       the regulator for capacity and latency: as many in flight as the handlers can take, and no more
reach      notices that the rate no longer answers to the window, and says what is reachable
settling   what becomes of a message whose handler failed, and of what is unfinished at a stop
policy     all of the above under one name: pure decisions, which the twin runs too

sensing    what was seen of a second: rate, residence time per message, how full the window was
consumer   `Consumer`: receives, calls handlers, acknowledges, and carries out what the policy decides
"""
