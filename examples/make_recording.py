"""How recording.csv was made: four minutes of a simulated consumer whose prefetch count is moved about.

The plant is the model that was published for a RabbitMQ consumer, y(k+1) = 0.26·y(k) + 59.73·u(k), with one sample
per second and noise of 15 messages per second. A recording of your own has the same form: one row per sample, one
column for what you set, one for what you measured. `python make_recording.py > recording.csv` writes it again.
"""

# ruff: noqa: T201 – an example prints

import random

SAMPLES, HOLD, NOISE = 240, 3, 15.0

rng = random.Random(1)
prefetch, arrival_rate = 1, 59.73 / (1 - 0.26)
print("time_s,prefetch,arrival_rate")
for second in range(SAMPLES):
    if second % HOLD == 0:
        prefetch = rng.randint(1, 12)
    arrival_rate = max(0.0, 0.26 * arrival_rate + 59.73 * prefetch + rng.gauss(0.0, NOISE))
    print(f"{second},{prefetch},{arrival_rate:.1f}")
