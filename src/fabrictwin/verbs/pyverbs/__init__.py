"""The interface, in modules named as pyverbs names them."""
