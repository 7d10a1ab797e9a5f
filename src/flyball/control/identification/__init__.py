"""From recorded input and output to a model, with diagnostics of what the data cannot tell."""
