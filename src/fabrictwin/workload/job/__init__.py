"""A checked training job: its section, ranks, groups and communications."""
