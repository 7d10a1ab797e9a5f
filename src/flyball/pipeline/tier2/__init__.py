"""Tier 2: rules over many events of the ordered stream; they raise alerts and derive events."""
