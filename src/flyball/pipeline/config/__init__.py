"""The TOML configuration of a pipeline, as validated models."""
