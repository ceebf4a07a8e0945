"""Speed, memory and rooflines of structlearn beside its peers, all measured in one run."""
