"""Files written whole or not at all, and read within limits without running what they hold."""
