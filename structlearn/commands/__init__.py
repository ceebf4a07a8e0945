"""What the commands of ``structlearn`` do; each module is imported by its command alone."""
