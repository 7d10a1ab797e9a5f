"""A zoo of consumers: seeded random plants and days that nobody has listed, and how a controller does on them.

`scenario(seed)` draws one, `judge` runs it in the twin, with the live decisions, beside fixed windows.
"""

from flyball.testing.zoo.judge import Outcome, Verdict, judge, run, sweep
from flyball.testing.zoo.scenarios import Scenario, scenario

__all__ = ["Outcome", "Scenario", "Verdict", "judge", "run", "scenario", "sweep"]
