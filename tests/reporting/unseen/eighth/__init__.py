"""Failures of several ranks: who lost whom, and who said what first."""
