"""Groups of members that read queues, in virtual time.

plant       queues with arrivals, members that serve them and may slow down, hand-overs that cost time
cases       random groups, by seed
load_run    one run of a plant under a balancer, with its moves and its utilisation
published   balancers as others have published them, for comparison
faults      what goes wrong, and when
membership  who owns which queue over an unreliable network, in broker mode and in client mode
"""
