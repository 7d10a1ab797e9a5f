"""Traffic for publishers."""
