"""Hold a consumer's rate at 400 messages a second, whatever happens to it.

The consumer here is a published model in virtual time, so the example runs at once and always prints the same. In
a real program `measure` and `set_window` are your own functions, and the clock is left out.
"""

# ruff: noqa: T201 – an example prints

from flyball import Loop, Pi, run
from flyball.control.models import first_order
from flyball.testing.clock import VirtualClock
from flyball.twin.closed_loop import step_at
from flyball.twin.plants import ArxPlant

clock = VirtualClock()
# y(k+1) = 0.26·y(k) + 59.73·u(k); after 20 s a noisy neighbour takes 100 messages a second away
consumer = ArxPlant(first_order(0.26, 59.73), command=1.0, disturbance=step_at(20.0, -100.0))


def measure() -> float:
    return consumer.measure(clock.now())


def set_window(window: float) -> float:
    return consumer.apply(window, clock.now())


loop = Loop(
    "prefetch",
    sensor=measure,
    actuator=set_window,
    controller=Pi(kp=-0.0016, ki=0.0060),
    goal=400.0,
    limits=(1.0, 360.0),
    mode="on",  # a loop starts in the mode "advise", which touches nothing
)
runner = run([loop], samples=40, clock=clock)

print("time  rate  window")
for record in runner.records():
    if record.time % 3 == 0:
        print(f"{record.time:4.0f}  {record.measurement:4.0f}  {record.command:6.2f}")
