"""Linen modules that models are made of; they own parameters and call `ops`."""
