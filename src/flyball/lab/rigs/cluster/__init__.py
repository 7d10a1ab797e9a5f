"""A cluster on limited broker nodes, and the load of its clients."""
