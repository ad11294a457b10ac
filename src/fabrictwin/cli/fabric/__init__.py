"""Commands about a fabric: its shape, routes, manager, and what is in the catalog."""
