"""The arrays that the packet simulation keeps, and how it reaches them."""
