"""Why an answer came out short: priors, trajectories, attention and the theorems, for any checkpoint."""
