"""A discrete-event model of sampler, learner and network, fed with measured times."""
