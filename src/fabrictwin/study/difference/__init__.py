"""Two runs side by side: what differs in what was asked, in the answer, in the step's parts, on each link."""
