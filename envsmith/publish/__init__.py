"""Publishing and verifying: an image goes to a registry with its proof, and anyone can check the proof without us.

``push`` sends an OCI layout, ``attach`` makes what is attached to it (lock, record, SBOM, signed statement), ``verify`` reads both back from a
registry or from a bundle file and believes nothing that a digest or the signature does not cover.
"""
