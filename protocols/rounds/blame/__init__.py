"""Who spoiled a row: sums of the streams over one whole row of a void plan, compared (rule R11).

A row of an honest party's y sums to its quota plus its streams over that row, each with its sign.
The quota is public: the terms of the run have it. So a party that states the sum of each stream
over a whole row tells nothing about a vote: given these sums, every row with that quota is as
likely as before. One word is different: its stream sums would open a vote. So a party takes the
width of a row from the terms that it agreed to, never from the request.

The result. Both ends of a pair state the same sum, or one of them lies: the pair is named. A party
whose y does not come to its quota under its own statement is named alone; an honest one never is. A
party that is asked and states nothing is named, too. If all state, somebody is named whenever the
row of the sum is wrong: where all pairs agree the sums cancel, so some party's own row is off. Lies
that keep the row of the sum right (within one party's row, or of two parties that make up for one
another) void nothing and are not found.

The coordinator keeps row sums of each y, not y itself. A thief of the row sums and all keys learns
quotas. A thief of the y's and all keys would learn votes.
"""

__all__: list[str] = []
