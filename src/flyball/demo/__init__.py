"""What `flyball demo` adds to `flyball run`: generated events, a CPU load, a consumer whose goal changes."""
