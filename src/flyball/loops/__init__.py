"""Loops on a clock: the host that connects controllers with sensors and actuators.

policy      one step of a loop as a pure function: observation in, record out (the twin runs this, too)
loop        what a user declares: sensor, actuator, controller, goal
checked     gains are verified before they act
recommendation  recording of a loop → model and proposed gains
runner      drives many loops on one asyncio clock
clock       time, passed in
telemetry   where records go: memory, SQLite, Parquet, Prometheus; all bounded
config      loops described in TOML, checked by models derived from the controllers themselves
"""
