"""The promises of the broker port, a file a kind; `flyball.testing.broker_contract` puts them together."""
