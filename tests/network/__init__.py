"""A network of real hosts on one machine, for tests: network and process namespaces, a bridge, an sshd in each.

``namespaces`` starts what lives and dies with the test process, ``hosts`` is what a test does to one host, ``lan``
wires them together, ``fixtures`` hands them to tests. Nothing has a name on the real system except one interface, and
the kernel takes everything away with the process that asked for it, however that process ends.
"""
