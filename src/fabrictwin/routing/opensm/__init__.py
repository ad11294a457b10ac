"""OpenSM 3.3.23's routing engines, entry for entry: minhop, updn, dnup, ftree, sssp, dfsssp."""
