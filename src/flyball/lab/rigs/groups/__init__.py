"""The set-up of the groups benchmark: the peer that it runs beside."""
