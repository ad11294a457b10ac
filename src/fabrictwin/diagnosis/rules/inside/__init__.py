"""Rules on the inside of hosts, whatever tool shows it: NVLinks, PCIe."""
