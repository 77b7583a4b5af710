"""Figures that must hold, each measured in the run that prints it."""
