"""A real federation: any method on Flower, through the same contract as on one machine.

`pfedfda.flower.client_app` and `pfedfda.flower.server_app` hold the two apps. Nothing here is
imported by the rest of the package, so that Flower is needed only by those who use it.
"""
