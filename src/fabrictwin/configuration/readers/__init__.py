"""Files as the model, one module a target; `recognise` tells which one a file is for."""
