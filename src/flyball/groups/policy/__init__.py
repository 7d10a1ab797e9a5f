"""Assignment of queues to members: pure functions from a group and its previous assignment to a plan."""
