"""Controllers, one a file; `catalogue` names them all.

Conventions that every controller here keeps, so that they need not be repeated in each file:

* **Gains are per sample.** A design is made and verified for one sampling period, so every usable sample
  counts as exactly one, whatever its `dt`. Scaling the integral by the lateness of a sample would raise the
  loop gain above the one that was verified at the very moment the loop is in trouble; counting a late sample
  once can only slow the loop down. A missing sample counts as none.
* **The applied command is the truth.** Where a sample says which command was in force and it is not the one
  that was asked for (a limit, a manual move, a refused call), memory is back-calculated so that the
  controller would have asked for what was applied. The integral therefore never winds up, and switching a
  loop from frozen or shadow to on does not bump. An actuator that rounds must report the value before
  rounding, or wrap the controller in `Dither`: tracking a rounded value would erase every step of the
  integral smaller than half a unit.
* **A bad sample holds.** A missing, NaN or infinite measurement or set point gives a command of None with the
  reason in words, and the state stays usable.
* **The start is smooth.** From `initial(command)` the first action moves the actuator by the integral's step
  alone: a proportional term counts from the first error that was seen.
"""
