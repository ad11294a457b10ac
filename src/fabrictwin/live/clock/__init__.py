"""How modelled time goes while programs run: after the machine's clock, or by itself, with programs behind it."""
