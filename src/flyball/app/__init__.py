"""What `flyball run` puts together: source → publisher → broker → pipeline → alerts, from a config file."""
