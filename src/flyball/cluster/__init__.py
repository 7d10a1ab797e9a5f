"""Clustered queue: several broker nodes that act as one queue, behind `cluster://NAME?store=URL`.

    config.py             queue and nodes of a cluster;  cluster_store.py: what its processes share
    policy/               all decisions, pure: the twin runs the same
    manager.py            observes, lets the policy decide, writes the record
    mover.py              moves messages between nodes, at a rate that leaves clients what they need
    node_connections.py   its connections to the nodes;  records.py, proposal_records.py: the record as a document
    node_supply.py        nodes that are being added and removed;  provisioners/: what starts and stops them
    descriptions.py       decisions and proposals in the words of people
    client.py             a process: its sessions, and a candidate for the manager
    work_meter.py         what a client does, for its reports
    session.py            one client: follows the record from node to node;  lines.py: its connection to a node
    broker.py             the port;  sender.py, receiver.py: its clients;  other_sender.py: other queues

A client reports to the store and follows the manager's record; it needs neither to send nor to receive.
"""
