"""A discrete-event simulator of gateways and replicas that runs the policies themselves, not a copy of them."""
