"""The same loops in virtual time, on simulated plants: try a controller before it touches anything real.

engine      runs loops/policy.py on SimPy's clock
plants      what is controlled: a protocol, and the linear plant
workload    seeded arrivals: Poisson, normal, steps, bursts, traces
consumer    a consumer on a RabbitMQ-like queue, message by message; consumer_loop regulates it as the live one
publisher   the publisher paper's publisher under the live publisher's policy; pubsub: its broker and subscriber
"""
