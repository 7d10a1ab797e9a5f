"""Pure mathematics of feedback control: numpy and scipy only, no I/O, no clock, no logging, no randomness.

step        the contract every controller keeps: step(state, sample) -> (state, action)
models      what a plant looks like: ARX with offset and input delay, state space
signals     experiment signals: step, staircase, PRBS
identify    data -> model, with the evidence for it
recursive   the same, one sample at a time
design      model + specification -> gains, by placement or search;  lqr, lanes  the same for several commands
verify      model + gains -> certificate (jury, margins, response, robustness);  verify_matrix  for several
commands gains       the gains of a linear controller, and the polynomials that they mean
controllers one controller a file, and the catalogue that names them
wrappers    limits, filters, dither around any controller
filters     running averages and medians;  limits  how far and how fast a command may go
state       controller states as plain data, for storing
guard       notices when a loop no longer does what its design assumed
"""
