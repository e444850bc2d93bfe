"""The opening of a sum that fewer than all parties gave: shares dealt, shown and joined; both ends.

Against the certificate for a set U (`verdicts`) each party of U shows its shares of the keys that
are still in the sum of U; `masked` says which. A holder knows a dealer's hashes by their digest,
without which the shares' envelope does not open. Where a share does not fit, the dealer's word
stands against the holder's (and, for the holder, the coordinator's): the pair is named, never one
of them alone.
"""

__all__: list[str] = []
