"""What `flyball demo` adds to `flyball run`: generated events, a CPU load, and a consumer whose goal changes."""
