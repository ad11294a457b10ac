"""Ranges around predictions, made from rows that were held out."""
