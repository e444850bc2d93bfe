"""Who spoiled a row: sums of the streams over one whole row of a void plan, compared (rule R11).

A row of an honest party's y sums to its quota plus its streams over that row, each with its sign.
The quota is public: the terms of the run have it. So a party that states the sum of each stream
over a whole row tells nothing about a vote: given these sums, every row with that quota is as
likely as before. One word is different: its stream sums would open a vote. So a party takes the
width of a row from the terms that it agreed to, never from the request.

Who is named, and why an honest party alone never is: docs/reference/messages.md. If all state,
somebody is named whenever the row of the sum is wrong: where all pairs agree the sums cancel, so
some party's own row is off.

The coordinator keeps row sums of each y, not y itself. A thief of the row sums and all keys learns
quotas. A thief of the y's and all keys would learn votes.
"""

__all__: list[str] = []
