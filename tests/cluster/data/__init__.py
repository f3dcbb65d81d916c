"""Datasets and arrays over machines: who makes the batches, and what travels."""
