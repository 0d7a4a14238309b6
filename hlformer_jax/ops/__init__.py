"""Mathematics as pure functions of arrays: no parameters, no Flax, nothing above `typing`."""
