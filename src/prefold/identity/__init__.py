"""Identity: what must be equal before KV may be reused, and the keys that say so.

================  ========================================  ============================
module            holds                                     builds on
================  ========================================  ============================
``secret``        the master secret; an audience's key      ``domain``, ``private_file``
``block_key``     chained content keys, keyed block keys    ``fingerprint``, ``content``
``content``       digests of images and embeddings          ``encoding``
``fingerprint``   everything that shapes KV, as one value   ``encoding``
``domain``        who may share: domains and audiences      --
``private_file``  files of secrets, their owner's alone     --
``encoding``      the one injective encoding, and digests   --
================  ========================================  ============================

Every digest and key in the project is made by ``encoding``; nothing else
serialises a value for hashing.
"""
