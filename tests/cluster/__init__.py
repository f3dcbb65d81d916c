"""Reaching other machines: real servers in the hosts of the test network, and real reasons why they are not reached."""
