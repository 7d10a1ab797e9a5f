"""The same loops in virtual time, on simulated plants: try a controller before it touches anything real.

engine      runs loops/policy.py on SimPy's clock
plants      what is controlled: a protocol, and the linear plant
workload    seeded arrivals: Poisson, normal, steps, bursts, traces
consumer    a consumer on a RabbitMQ-like queue, message by message; consumer_loop regulates it as the live one
cluster     a clustered queue under the policy of the cluster: nodes, exchange, joins, leaves, lost nodes
groups      members that read queues: load, faults and hand-overs under the strategies and coordinator of groups
publisher   the publisher paper's publisher under the live publisher's policy; pubsub: its broker and subscriber
"""
