"""Pure mathematics of feedback control: numpy and scipy only, no I/O, no clock, no logging, no randomness.

step            the contract of every controller: step(state, sample) -> (state, action)
record          the record of one step of a loop
models          plants: ARX with offset and input delay, state space
identification  recorded input and output -> model, with the evidence for it; signals of experiments
design          model + specification -> gains, by placement or search; LQR and lane balancing for several commands
verification    model + gains -> certificate: poles, margins, response, robustness
tuning          from an experiment on a running plant to verified controllers
gains           the gains of a linear controller, and the polynomials that they mean
controllers     one controller a file, and the catalogue of their names
wrappers        limits, filters, dither around any controller
guard           detects when a loop no longer behaves as its design assumed
filters         running averages and medians;  limits  how far and how fast a command may go
state           controller states as plain data, for storing
"""
