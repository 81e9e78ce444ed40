"""Publishing and verifying: an image goes to a registry with its proof, and anyone can check the proof without us.

``push`` sends an OCI layout, ``statement`` makes what is attached to it, ``verify`` reads both back from a registry or
a bundle and believes nothing that a digest or the signature does not cover. ``verbs`` has the two verbs as functions.
"""
