"""Publishing and verifying: an image goes to a registry with its proof, and anyone can check the proof without us.

``cell`` and ``named_image`` have the two verbs as functions. ``push`` sends an OCI layout, ``statement`` is what is
signed of it, ``attachments`` what is attached to it. ``verify`` reads all of it back from a registry or a bundle and
believes nothing that a digest or the signature does not cover.
"""
