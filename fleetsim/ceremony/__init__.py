"""What a ceremony is: the keys of its file, when it is due, and how it is written. Pure; knows no folder and no hub.

Below the client and the hub: who checks a ceremony before it is sent checks it as the hub that will read it.
"""
