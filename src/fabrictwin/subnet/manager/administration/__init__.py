"""Subnet administration: queries, groups, subscriptions."""
