"""From a model and a specification to gains."""
