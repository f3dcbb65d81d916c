"""Logins, keys, programs and tunnels by ssh."""
