"""Jobs that were captured or traced elsewhere: what each rank computed and called, to be played on any cluster."""
