"""Strategies and their builders."""
